-- Makes a database that is not there yet. (CREATE DATABASE knows no IF NOT EXISTS.)
-- Variables: database.
SELECT format('CREATE DATABASE %I', :'database')
 WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = :'database')
\gexec
