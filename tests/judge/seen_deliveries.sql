-- What a judge is shown of deliveries: every change of their rows, in its order.

CREATE SCHEMA judge;

CREATE TABLE judge.seen (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    is_test    boolean NOT NULL DEFAULT session_user = 'postgres',
    what       text NOT NULL,
    delivery   text NOT NULL,
    status     smallint NOT NULL,
    is_decided boolean,
    tries      smallint NOT NULL,
    tries_max  smallint
);

CREATE FUNCTION judge.see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    what text := TG_ARGV[0];
BEGIN
    IF what = 'moved' THEN -- the other table has no such column
        IF (NEW.status, NEW.is_decided) = (OLD.status, OLD.is_decided) THEN
            what := 'tried';
        END IF;
    END IF;
    INSERT INTO judge.seen (what, delivery, status, is_decided, tries, tries_max)
    SELECT what, NEW.message_id || ' ' || NEW.consumer, NEW.status,
           CASE WHEN what <> 'done' THEN (to_jsonb(NEW) ->> 'is_decided')::boolean END,
           NEW.send_count, (SELECT tries_max FROM outbox_destination AS known
                             WHERE known.destination = NEW.destination);
    RETURN NULL;
END
$$;

CREATE TRIGGER judge_stored AFTER INSERT ON public.outbox_pending
    FOR EACH ROW EXECUTE FUNCTION judge.see('stored');
CREATE TRIGGER judge_moved AFTER UPDATE OF status, is_decided, send_count ON public.outbox_pending
    FOR EACH ROW EXECUTE FUNCTION judge.see('moved');
CREATE TRIGGER judge_done AFTER INSERT ON public.outbox_done
    FOR EACH ROW EXECUTE FUNCTION judge.see('done');
