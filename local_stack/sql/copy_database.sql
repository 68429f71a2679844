-- Makes a database with the tables of another one, which has no connection. It is a database of
-- its own: it has its own identity, and its own key for the outbox's tokens.
-- Variables: database, template, strategy.
CREATE DATABASE :"database" TEMPLATE :"template" STRATEGY :strategy;
-- Grants on the database itself are not copied.
SELECT format('REVOKE CREATE, TEMPORARY ON DATABASE %I FROM PUBLIC', :'database')
  FROM pg_catalog.pg_database
 WHERE datname = :'template' AND NOT has_database_privilege('public', oid, 'TEMPORARY')
\gexec
\connect :"database"
-- Both are never changed, which triggers see to.
SET session_replication_role = replica;
SELECT 'UPDATE public.schema_version SET database_id = gen_random_uuid()'
 WHERE to_regclass('public.schema_version') IS NOT NULL
\gexec
SELECT 'UPDATE public.outbox_secret SET confirm_key = sha256(uuid_send(gen_random_uuid()))'
 WHERE to_regclass('public.outbox_secret') IS NOT NULL
\gexec
