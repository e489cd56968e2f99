package names

import (
	"context"
	"fmt"
	"strings"
)

func raises(name string, args []string, result string) string {
	return fmt.Sprintf(`CREATE FUNCTION %s(%s) RETURNS %s LANGUAGE plpgsql
		AS 'BEGIN RAISE EXCEPTION $$called$$; END'`, name, strings.Join(args, ", "), result)
}

// shadow creates types of the names that Postgres has in the hostile schema, and tables of the
// names that there are, and puts the schema in front.
func (w walk) shadow(ctx context.Context, tables bool) error {
	_, err := w.Exec(ctx, fmt.Sprintf(`DO $$
DECLARE
	own text := current_schema();
	name text;
BEGIN
	FOR name IN SELECT typname FROM pg_type
		WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype = 'b' AND typcategory <> 'A' LOOP
		EXECUTE format('CREATE TYPE %[1]s.%%I AS ENUM ()', name);
	END LOOP;
	FOR name IN SELECT relname FROM pg_class
		WHERE relnamespace = own::regnamespace AND relkind = 'r' AND %[2]t LOOP
		EXECUTE format('CREATE TABLE %[1]s.%%I (LIKE %%I.%%I)', name, own, name);
	END LOOP;
	EXECUTE format('SET LOCAL search_path = %[1]s, %%I', own);
END $$`, w.hostile, tables))
	return err
}
