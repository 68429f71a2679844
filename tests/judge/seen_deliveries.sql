-- What a judge is shown of deliveries: every change of their rows, in its order.

CREATE SCHEMA judge;

CREATE TABLE judge.seen (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    is_test    boolean NOT NULL DEFAULT (
        session_user = 'postgres' AND current_setting('application_name') NOT LIKE 'orderchain %'
    ),
    what       text NOT NULL,
    delivery   text NOT NULL,
    status     smallint NOT NULL,
    is_decided boolean,
    tries      smallint,
    tries_max  smallint
);

CREATE FUNCTION judge.see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    what text := TG_ARGV[0];
    seen jsonb := to_jsonb(coalesce(NEW, OLD)); -- the tables have different columns
BEGIN
    IF what = 'moved' THEN
        IF (NEW.status, NEW.is_decided) = (OLD.status, OLD.is_decided) THEN
            what := 'tried';
        END IF;
    END IF;
    INSERT INTO judge.seen (what, delivery, status, is_decided, tries, tries_max)
    SELECT what, (seen ->> 'message_id') || ' ' || (seen ->> 'consumer'),
           coalesce(seen ->> 'status', seen ->> 'to_status')::smallint,
           (seen ->> 'is_decided')::boolean, (seen ->> 'send_count')::smallint,
           (SELECT tries_max FROM outbox_destination AS known
             WHERE known.destination = seen ->> 'destination');
    RETURN NULL;
END
$$;

CREATE TRIGGER judge_stored AFTER INSERT ON public.outbox_pending
    FOR EACH ROW EXECUTE FUNCTION judge.see('stored');
CREATE TRIGGER judge_moved AFTER UPDATE OF status, is_decided, send_count ON public.outbox_pending
    FOR EACH ROW EXECUTE FUNCTION judge.see('moved');
CREATE TRIGGER judge_left AFTER DELETE ON public.outbox_pending
    FOR EACH ROW EXECUTE FUNCTION judge.see('left');
CREATE TRIGGER judge_done AFTER INSERT OR UPDATE ON public.outbox_done
    FOR EACH ROW EXECUTE FUNCTION judge.see('done');
CREATE TRIGGER judge_acted AFTER INSERT ON public.delivery_act
    FOR EACH ROW EXECUTE FUNCTION judge.see('acted');
