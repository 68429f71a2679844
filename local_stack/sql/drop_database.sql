-- Drops a database, and whoever is still connected to it.
-- Variables: database.
DROP DATABASE IF EXISTS :"database" WITH (FORCE);
