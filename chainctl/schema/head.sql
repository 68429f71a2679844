-- ---------------------------------------------------------------------------------------- roles
-- Made without a password, so no one can log in until a DBA sets one.

DO $$
DECLARE
    role_name text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'orderchain_owner') THEN
        CREATE ROLE orderchain_owner NOLOGIN;
    END IF;
    FOREACH role_name IN ARRAY ARRAY[:'roles']
    LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            EXECUTE format('CREATE ROLE %I LOGIN', role_name);
        END IF;
    END LOOP;
    -- A role that applies the schema without being a superuser must be able to act as the owner.
    IF NOT pg_has_role('orderchain_owner', 'USAGE') THEN
        EXECUTE format('GRANT orderchain_owner TO %I', current_user);
    END IF;
END
$$;

GRANT CREATE, USAGE ON SCHEMA public TO orderchain_owner;
GRANT USAGE ON SCHEMA public TO :roles;
SET LOCAL ROLE orderchain_owner;
SET LOCAL search_path = public;

-- ---------------------------------------------------------------------------------------- version

CREATE TABLE :version_table (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    version    integer     NOT NULL,
    -- An upgrade to it is under way: programs of that version work here, too (docs/upgrade.md).
    upgrade_to integer     CHECK (upgrade_to = version + 1),
    applied_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO :version_table (version) VALUES (:version);
