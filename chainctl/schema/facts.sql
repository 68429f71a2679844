-- What the catalogs know of a part's objects, in a form that two databases can be compared by.

-- reader_settings: names and expressions read the same whatever the login has set
SELECT set_config('search_path', 'pg_catalog, public', true),
       set_config('quote_all_identifiers', 'off', true),
       set_config('standard_conforming_strings', 'on', true),
       set_config('bytea_output', 'hex', true),
       set_config('DateStyle', 'ISO, MDY', true),
       set_config('IntervalStyle', 'postgres', true),
       set_config('TimeZone', 'UTC', true),
       set_config('extra_float_digits', '1', true)

-- numbers: what gives the rows of the tables $1 their numbers, as far as this login may look: table,
-- column, and the question how high they stand
SELECT c.relname AS table_name, a.attname AS column_name,
       format('SELECT max(%1$I) AS highest, coalesce((SELECT pg_sequence_last_value(%2$s)), 0) AS '
              'stands_at FROM public.%3$I', a.attname, d.objid, c.relname) AS question
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attidentity <> '' AND NOT a.attisdropped
  JOIN pg_depend AS d ON d.refobjid = c.oid AND d.refobjsubid = a.attnum AND d.deptype = 'i'
   AND d.refclassid = 'pg_class'::regclass AND d.classid = 'pg_class'::regclass
  JOIN pg_class AS s ON s.oid = d.objid
 WHERE c.relnamespace = 'public'::regnamespace AND c.relname = ANY ($1::text[])
   AND has_table_privilege(c.oid, 'SELECT')
   -- CASE, since conditions are evaluated in any order, and not all that depends is a sequence.
   AND CASE s.relkind WHEN 'S' THEN has_sequence_privilege(s.oid, 'SELECT') END
 ORDER BY 1

-- facts: the object, what about it, and how that is: of the tables and views $1, the functions $2 and
-- the roles $3, the owner $4 among them; partitions that were made at run time are no objects of
-- their own, and count only where they differ from their table
WITH relation AS (
    SELECT c.oid, c.relname, c.relkind, c.relowner, c.relacl, c.reloptions, c.relpersistence,
           c.relrowsecurity, c.relforcerowsecurity, c.relpartbound,
           CASE WHEN c.relkind IN ('v', 'm') THEN 'view ' ELSE 'table ' END || c.relname AS object
      FROM pg_class AS c
     WHERE c.relnamespace = 'public'::regnamespace AND c.relname = ANY ($1::text[])
       AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
), sequence AS (
    SELECT c.oid, c.relowner, c.relacl, 'sequence ' || c.relname AS object
      FROM relation
      JOIN pg_depend AS d ON d.refobjid = relation.oid AND d.refclassid = 'pg_class'::regclass
       AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
      JOIN pg_class AS c ON c.oid = d.objid AND c.relkind = 'S'
), partition AS (
    SELECT c.oid, c.relowner, c.relacl, relation.relowner AS root_owner, relation.object,
           'partition ' || c.relname AS name
      FROM relation
     CROSS JOIN LATERAL pg_partition_tree(relation.oid) AS tree
      JOIN pg_class AS c ON c.oid = tree.relid
     WHERE relation.relkind = 'p' AND c.oid <> relation.oid AND c.relname <> ALL ($1::text[])
), function AS (
    SELECT p.*, format('function %s(%s)', p.proname, oidvectortypes(p.proargtypes)) AS object
      FROM pg_proc AS p
     WHERE p.pronamespace = 'public'::regnamespace AND p.proname = ANY ($2::text[])
), role AS (
    SELECT r.*, 'role ' || r.rolname AS object FROM pg_roles AS r WHERE r.rolname = ANY ($3::text[])
), owned AS (
    SELECT object, oid, relowner AS owner, relacl AS acl, 'r'::"char" AS kind, '' AS of_part
      FROM relation
    UNION ALL SELECT object, oid, relowner, relacl, 's', '' FROM sequence
    UNION ALL SELECT object, oid, proowner, proacl, 'f', '' FROM function
    UNION ALL SELECT object, oid, relowner, relacl, 'r', ' ' || name FROM partition
), granted AS (
    SELECT owned.object, acl.grantee, owned.owner, acl.is_grantable,
           acl.privilege_type || CASE of_part WHEN '' THEN '' ELSE ' on' || of_part END AS privilege
      FROM owned
     CROSS JOIN LATERAL aclexplode(coalesce(owned.acl, acldefault(owned.kind, owned.owner))) AS acl
    UNION ALL
    SELECT relation.object, acl.grantee, relation.relowner, acl.is_grantable,
           acl.privilege_type || ' column ' || a.attname
      FROM relation
      JOIN pg_attribute AS a ON a.attrelid = relation.oid AND NOT a.attisdropped
     CROSS JOIN LATERAL aclexplode(a.attacl) AS acl
    UNION ALL
    -- The owner's rights on the schema and the database are rights that it was granted there.
    SELECT 'schema public', acl.grantee, 0, acl.is_grantable, acl.privilege_type
      FROM pg_namespace AS n
     CROSS JOIN LATERAL aclexplode(n.nspacl) AS acl
     WHERE n.nspname = 'public' AND acl.privilege_type <> 'USAGE'
       AND acl.grantee IN (SELECT oid FROM role)
    UNION ALL
    SELECT 'database', acl.grantee, 0, acl.is_grantable, acl.privilege_type
      FROM pg_database AS d
     CROSS JOIN LATERAL aclexplode(d.datacl) AS acl
     WHERE d.datname = current_database() AND acl.privilege_type <> 'CONNECT'
       AND acl.grantee IN (SELECT oid FROM role)
), fact (object, aspect, value) AS (
    SELECT object, 'owner', owner::regrole::text FROM owned WHERE of_part = ''
    UNION ALL
    SELECT object, name || ' owner', relowner::regrole::text FROM partition
     WHERE relowner <> root_owner
    UNION ALL
    SELECT object,
           format('role %s may %s', CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
                  privilege),
           CASE WHEN bool_or(is_grantable) THEN 'may, and grant it' ELSE 'may' END
      FROM granted WHERE grantee <> owner OR grantee = 0
     GROUP BY object, grantee, privilege
    UNION ALL
    -- Granted to the role or to PUBLIC: a DBA may choose which.
    SELECT 'schema public', format('role %I may USAGE', rolname), 'may' FROM role
     WHERE has_schema_privilege(oid, 'public', 'USAGE')
    UNION ALL
    SELECT 'database', format('role %I may CONNECT', rolname), 'may' FROM role
     WHERE has_database_privilege(oid, current_database(), 'CONNECT') AND rolname <> $4
    UNION ALL
    SELECT object, 'rights', coalesce(string_agg(named.name, ', ' ORDER BY named.name), 'none')
      FROM role
      LEFT JOIN LATERAL (VALUES (rolsuper, 'SUPERUSER'), (rolbypassrls, 'BYPASSRLS'),
         (rolcreaterole, 'CREATEROLE'), (rolcreatedb, 'CREATEDB'), (rolreplication, 'REPLICATION'),
         (rolname <> $4 AND EXISTS (SELECT FROM pg_roles AS o WHERE o.rolname = $4
           AND pg_has_role(role.oid, o.oid, 'MEMBER')), 'member of ' || $4),
         (rolname = $4 AND rolcanlogin, 'LOGIN')) AS named (has_it, name)
        ON named.has_it
     GROUP BY object
    UNION ALL
    -- Every role may set these for itself. Our sessions pin them; who looks with psql is led astray.
    SELECT coalesce(role.object, 'database'), 'session setting ' || split_part(setting, '=', 1),
           substr(setting, strpos(setting, '=') + 1)
      FROM pg_db_role_setting AS stored
     CROSS JOIN LATERAL unnest(stored.setconfig) AS setting
      LEFT JOIN role ON role.oid = stored.setrole
     WHERE (role.oid IS NOT NULL OR stored.setrole = 0)
       AND stored.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
       AND split_part(setting, '=', 1) IN (
           'search_path', 'role', 'session_replication_role', 'default_transaction_isolation',
           'default_transaction_read_only', 'statement_timeout', 'lock_timeout'
       )
    UNION ALL
    SELECT object, 'kind', concat_ws(' ',
               CASE relpersistence WHEN 'u' THEN 'unlogged' WHEN 't' THEN 'temporary' END,
               CASE relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view'
                    WHEN 'f' THEN 'foreign table' ELSE 'table' END,
               'partitioned by ' || pg_get_partkeydef(oid),
               'partition ' || pg_get_expr(relpartbound, oid) || ' of '
               || (SELECT i.inhparent::regclass FROM pg_inherits AS i WHERE i.inhrelid = relation.oid))
      FROM relation
    UNION ALL
    SELECT object, 'row security', CASE WHEN relforcerowsecurity THEN 'forced' ELSE 'enabled' END
      FROM relation WHERE relrowsecurity
    UNION ALL
    SELECT object, 'setting ' || split_part(setting, '=', 1),
           substr(setting, strpos(setting, '=') + 1)
      FROM relation CROSS JOIN LATERAL unnest(reloptions) AS setting
    UNION ALL
    SELECT object, 'definition', pg_get_viewdef(oid) FROM relation WHERE relkind IN ('v', 'm')
    UNION ALL
    SELECT relation.object, 'column ' || a.attname, concat_ws(' ',
               format_type(a.atttypid, a.atttypmod),
               CASE WHEN a.attcollation <> t.typcollation
                    THEN 'COLLATE ' || a.attcollation::regcollation END,
               CASE WHEN a.attnotnull THEN 'NOT NULL' END,
               CASE a.attgenerated WHEN '' THEN 'DEFAULT ' ELSE 'GENERATED ' END
               || pg_get_expr(d.adbin, d.adrelid),
               CASE a.attidentity WHEN 'a' THEN 'GENERATED ALWAYS AS IDENTITY'
                                  WHEN 'd' THEN 'GENERATED BY DEFAULT AS IDENTITY' END,
               CASE WHEN a.attstorage <> t.typstorage
                    THEN 'STORAGE ' || CASE a.attstorage WHEN 'e' THEN 'EXTERNAL'
                         WHEN 'p' THEN 'PLAIN' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END END)
      FROM relation
      JOIN pg_attribute AS a ON a.attrelid = relation.oid AND a.attnum > 0 AND NOT a.attisdropped
      JOIN pg_type AS t ON t.oid = a.atttypid
      LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    UNION ALL
    -- Not 'n': only PostgreSQL 18 keeps NOT NULL as a constraint; the column says it.
    SELECT relation.object, 'constraint ' || c.conname, pg_get_constraintdef(c.oid)
      FROM relation JOIN pg_constraint AS c ON c.conrelid = relation.oid
     WHERE c.contype IN ('c', 'f', 'p', 'u', 'x')
    UNION ALL
    SELECT relation.object, 'index ' || i.indexrelid::regclass, concat_ws(' ',
               pg_get_indexdef(i.indexrelid), CASE WHEN NOT i.indisvalid THEN '(invalid)' END)
      FROM relation JOIN pg_index AS i ON i.indrelid = relation.oid
     WHERE NOT i.indisvalid
        OR NOT EXISTS (SELECT FROM pg_constraint AS c
                        WHERE c.conindid = i.indexrelid AND c.contype IN ('p', 'u', 'x'))
    UNION ALL
    SELECT relation.object, 'trigger ' || t.tgname, concat_ws(' ', pg_get_triggerdef(t.oid),
               CASE t.tgenabled WHEN 'D' THEN '(disabled)' WHEN 'R' THEN '(on replicas only)'
                                WHEN 'A' THEN '(always)' END)
      FROM relation JOIN pg_trigger AS t ON t.tgrelid = relation.oid WHERE NOT t.tgisinternal
    UNION ALL
    -- Those by which the server holds foreign keys: off, it holds none.
    SELECT DISTINCT relation.object, 'check of foreign keys', 'disabled'
      FROM relation JOIN pg_trigger AS t ON t.tgrelid = relation.oid
     WHERE t.tgisinternal AND t.tgenabled <> 'O'
    UNION ALL
    SELECT relation.object, 'rule ' || r.rulename, pg_get_ruledef(r.oid)
      FROM relation JOIN pg_rewrite AS r ON r.ev_class = relation.oid
     WHERE r.rulename <> '_RETURN'
    UNION ALL
    SELECT relation.object, 'policy ' || p.polname, concat_ws(' ',
               CASE WHEN p.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
               CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
                             WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
               'TO ' || (SELECT string_agg(CASE member WHEN 0 THEN 'PUBLIC'
                                           ELSE member::regrole::text END, ', ' ORDER BY 1)
                           FROM unnest(p.polroles) AS member),
               'USING ' || pg_get_expr(p.polqual, p.polrelid),
               'CHECK ' || pg_get_expr(p.polwithcheck, p.polrelid))
      FROM relation JOIN pg_policy AS p ON p.polrelid = relation.oid
    UNION ALL
    SELECT object, 'arguments', pg_get_function_arguments(oid) FROM function
    UNION ALL
    SELECT object, 'signature', concat_ws(' ',
               'RETURNS ' || pg_get_function_result(oid),
               'LANGUAGE ' || (SELECT lanname FROM pg_language AS l WHERE l.oid = prolang),
               CASE provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' END,
               CASE WHEN proisstrict THEN 'STRICT' END,
               CASE WHEN proleakproof THEN 'LEAKPROOF' END,
               CASE WHEN prosecdef THEN 'SECURITY DEFINER' END,
               CASE proparallel WHEN 's' THEN 'PARALLEL SAFE' WHEN 'r' THEN 'PARALLEL RESTRICTED' END,
               -- What the server assumes unless it is given.
               CASE WHEN prorows NOT IN (0, 1000) THEN 'ROWS ' || prorows END,
               -- With quote_all_identifiers on, a function is made with quotes around each name.
               'SET ' || regexp_replace(array_to_string(proconfig, ' SET '),
                                        '"([a-z_][a-z0-9_]*)"', '\1', 'g'))
      FROM function
    UNION ALL
    -- The digest of a body that is text says enough.
    SELECT object, 'body', coalesce(pg_get_function_sqlbody(oid),
               encode(sha256(convert_to(replace(prosrc, E'\r', ''), 'UTF8')), 'hex'))
      FROM function
)
SELECT object, aspect, trim(regexp_replace(value, '\s+', ' ', 'g')) AS value
  FROM fact
