package schema_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/schema"
)

// release is the files of a release whose newest version declares the lowest one that releases must
// know. Its first file is Weir's own.
func release(newest, compatible int) fstest.MapFS {
	files := fstest.MapFS{"0001_balance.up.sql": {Data: firstFile()}}
	for version := 2; version <= newest; version++ {
		sql :=
			fmt.Sprintf("CREATE TABLE weir_future_%d ();\nINSERT INTO weir_schema (version, compatible) VALUES (%d, %d);\n",
				version, version, min(version, compatible))
		files[fmt.Sprintf("%04d_future.up.sql", version)] = &fstest.MapFile{Data: []byte(sql)}
	}
	return files
}

func TestThisReleaseKeepsWorkingOnALaterOnesCompatibleSchema(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	later := schema.Newest + 2
	if err := schema.MigrateFiles(t.Context(), pool, release(later, schema.Newest)); err != nil {
		t.Fatal(err)
	}

	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Errorf("Migrate: %v", err)
	}
	if err := schema.Check(t.Context(), pool); err != nil {
		t.Errorf("Check: %v", err)
	}
	wantVersion(t, pool, later)
	wantError(t, schema.Migrate(t.Context(), pool, schema.To(schema.Newest)), "no way back")
}

func TestThisReleaseRefusesALaterOnesIncompatibleSchema(t *testing.T) {
	t.Parallel()
	pool := pgtest.Bare(t)
	later := schema.Newest + 2
	if err := schema.MigrateFiles(t.Context(), pool, release(later, later-1)); err != nil {
		t.Fatal(err)
	}
	name := scan[string](t, pool, "SELECT current_schema()")

	for what, err := range map[string]error{
		"Migrate": schema.Migrate(t.Context(), pool),
		"Check":   schema.Check(t.Context(), pool),
	} {
		if !errors.Is(err, schema.ErrIncompatible) {
			t.Errorf("%s: %v; want ErrIncompatible", what, err)
		}
		wantError(t, err, name, fmt.Sprintf("is at version %d", later), fmt.Sprintf("knows version %d", later-1),
			fmt.Sprintf("knows versions up to %d", schema.Newest), "upgrade Weir")
	}
	wantVersion(t, pool, later)
}
