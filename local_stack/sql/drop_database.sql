-- Drops a database, and ends the connections to it.
-- Variables: database.
DROP DATABASE IF EXISTS :"database" WITH (FORCE);
