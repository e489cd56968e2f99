package pgserver

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// fetched is the version that is downloaded where there is no server.
const fetched = embeddedpostgres.V17

// fetch downloads a server, or finds the one that it downloaded before, and returns its folder of programs.
//
// embedded-postgres has no call that only downloads. Its Start does, and then reuses a data folder that names the right
// version: given one that is otherwise empty it fails right there, with the programs in place. Starting the server is our
// own affair, so that root, ports and the end of it are the same whatever the source.
func fetch(cache, repository string) (string, error) {
	home := filepath.Join(cache, "postgres-"+string(fetched))
	bin := filepath.Join(home, "bin")
	if _, err := os.Stat(filepath.Join(bin, "postgres")); err == nil {
		return bin, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("pgserver: make a cache: %w", err)
	}
	// In a folder of our own and then by one rename: processes that download at the same time do not see each other's half.
	tmp, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return "", fmt.Errorf("pgserver: make a cache: %w", err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	data, unpacked := filepath.Join(tmp, "data"), filepath.Join(tmp, "postgres")
	if err := os.Mkdir(data, 0o700); err != nil {
		return "", fmt.Errorf("pgserver: make a cache: %w", err)
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(fetched[:2]), 0o600); err != nil {
		return "", fmt.Errorf("pgserver: make a cache: %w", err)
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	cfg := embeddedpostgres.DefaultConfig().Version(fetched).Port(uint32(port)).Logger(io.Discard).
		CachePath(tmp).RuntimePath(filepath.Join(tmp, "run")).DataPath(data).BinariesPath(unpacked)
	if repository != "" {
		cfg = cfg.BinaryRepositoryURL(repository)
	}
	failed := embeddedpostgres.NewDatabase(cfg).Start()
	if _, err := check(filepath.Join(unpacked, "bin")); err != nil {
		return "", fmt.Errorf("download: %w", failed)
	}
	if err := os.Chmod(unpacked, 0o755); err != nil {
		return "", fmt.Errorf("pgserver: unpack: %w", err)
	}
	if err := os.Rename(unpacked, home); err != nil {
		if _, there := os.Stat(filepath.Join(bin, "postgres")); there != nil { // another process was faster
			return "", fmt.Errorf("pgserver: unpack: %w", err)
		}
	}
	return bin, nil
}

// cacheDir is where downloads are kept: for root a place that the unprivileged user can read, too.
func cacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/weir", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("pgserver: no place for a download: %w", err)
	}
	return filepath.Join(dir, "weir"), nil
}
