-- After Franck Pachot, "Rate limiting with PostgreSQL / YugabyteDB (token buckets function)": one row for each key, tk whole
-- tokens at the time ts. A call takes one and adds those that have come in; the result is what remains, and below 0 the call
-- is denied.
CREATE TABLE rate_limiting_token_bucket (
	id text PRIMARY KEY,
	tk bigint NOT NULL,
	ts timestamptz NOT NULL
);

CREATE FUNCTION rate_limiting_token_bucket_request(rate_id text, refill_per_sec int, window_seconds int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
	remaining int;
BEGIN
	UPDATE rate_limiting_token_bucket
		SET tk = greatest(-1, least(window_seconds * refill_per_sec, tk - 1 + refill_per_sec * extract(epoch FROM clock_timestamp() - ts))),
			ts = clock_timestamp()
		WHERE id = rate_id
		RETURNING tk INTO remaining;
	IF remaining IS NULL THEN
		INSERT INTO rate_limiting_token_bucket VALUES (rate_id, window_seconds * refill_per_sec - 1, clock_timestamp())
			RETURNING tk INTO remaining;
	END IF;
	RETURN remaining;
END $$;
