-- Makes a login role that is not there yet, and gives it the password of the state file.
-- Variables: role, password.
SELECT format('CREATE ROLE %I LOGIN', :'role')
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = :'role')
\gexec
ALTER ROLE :"role" LOGIN PASSWORD :'password';
