package schema

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// Newest is the newest schema version that this release knows.
const Newest = 1

// oldest is the lowest schema version that this release works on.
const oldest = 1

//go:embed migrations/*.sql
var embedded embed.FS

// Files returns the migrations, for other migration tools: one file per version, NNNN_name.up.sql,
// numbered from 1 without gaps. golang-migrate (through its iofs source, not in its multi-statement
// mode, which cuts function bodies apart), goose, tern and atlas read them as they are.
//
// The files use unqualified names: they create everything in the first schema of the connection's
// search_path. Each records itself in weir_schema, so that [Version], [Check] and [Migrate] see it
// whichever tool applied it. The tool's own table of versions does not see what Migrate applied.
// Use the one or the other, and give the tool a separate version table for these files, as their
// numbers are Weir's.
func Files() fs.FS {
	files, err := fs.Sub(embedded, "migrations")
	if err != nil {
		// fs.Sub fails only on an invalid path, and this one is a constant.
		panic(err)
	}
	return files
}

type migration struct {
	version int
	name    string
	sql     string
}

// load reads the migrations in the order of their versions.
func load(files fs.FS) ([]migration, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	slices.Sort(names)

	migrations := make([]migration, 0, len(names))
	for i, name := range names {
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.Atoi(number)
		if err != nil || version != i+1 {
			return nil, fmt.Errorf("migration %s stands where version %d belongs", name, i+1)
		}
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		migrations = append(migrations, migration{version, name, string(text)})
	}
	return migrations, nil
}
