//go:build unix

package pgserver

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// fetched is the version that is downloaded where there is no server.
const fetched = embeddedpostgres.V17

// fetcher downloads a server.
type fetcher struct {
	home string // where it is unpacked, for good
	// where archives are kept; "" is embedded-postgres' own place, which other programs may have
	// filled
	archives   string
	repository string // "" is Maven Central; a URL, or a folder
}

// fetchInstead makes up for a server that was not found. A download may fail for a moment.
func fetchInstead(notFound error) (string, error) {
	f, err := newFetcher()
	if err != nil {
		return "", helpless(notFound, err)
	}
	for try := 1; ; try++ {
		bin, err := f.fetch()
		if err == nil {
			return bin, nil
		}
		if try == 3 {
			return "", helpless(notFound, err)
		}
		time.Sleep(time.Second)
	}
}

// helpless is the error of a machine on which no server can be had.
func helpless(notFound, notFetched error) error {
	return fmt.Errorf(`%w; and none could be downloaded: %w. Do one of these:
  - install a server (on Debian: apt-get install postgresql; on macOS: brew install postgresql@17)
  - set PGBIN to a server's folder of programs; or let this machine reach the network, or set WEIR_POSTGRES_REPOSITORY to a mirror of Maven Central
  - set DATABASE_URL to a server that runs`, notFound, notFetched)
}

func newFetcher() (fetcher, error) {
	f := fetcher{repository: os.Getenv("WEIR_POSTGRES_REPOSITORY")}
	if os.Geteuid() == 0 { // the user that the server runs as cannot enter root's home
		f.home = "/var/cache/weir"
		f.archives = f.home
		return f, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return f, fmt.Errorf("no place for a download: %w", err)
	}
	f.home = filepath.Join(cache, "weir")
	return f, nil
}

// fetch downloads a server, or finds the one that it downloaded before, and returns its folder of
// programs.
//
// embedded-postgres has no call that only downloads. Its Start does, and then reuses a data folder
// that names the right version: given one that is otherwise empty it fails right there, with the
// programs in place. Starting the server is our own affair, so that root, ports and the end of it
// are the same whatever the source.
func (f fetcher) fetch() (string, error) {
	home := filepath.Join(f.home, "postgres-"+string(fetched))
	bin := filepath.Join(home, "bin")
	if _, err := check(bin); err == nil {
		return bin, nil
	}
	if err := os.MkdirAll(f.home, 0o755); err != nil {
		return "", err
	}
	// In a folder of our own and then by one rename: processes that download at the same time do
	// not see each other's half.
	tmp, err := os.MkdirTemp(f.home, "unpack-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	unpacked := filepath.Join(tmp, "postgres")
	if err := f.download(tmp, unpacked); err != nil {
		return "", err
	}
	if err := publish(f.home, unpacked); err != nil {
		return "", err
	}
	if err := os.Rename(unpacked, home); err != nil {
		if _, other := check(bin); other != nil { // no other process was faster
			return "", err
		}
	}
	return bin, nil
}

func (f fetcher) download(tmp, unpacked string) error {
	repository, closeRepository, err := serve(f.repository)
	if err != nil {
		return err
	}
	defer closeRepository()
	data := filepath.Join(tmp, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte(fetched[:2]),
		0o600); err != nil {
		return err
	}
	// It checks that its port is free. Nobody is to listen there: 0 is always free, where any other
	// may be taken by somebody just then.
	cfg := embeddedpostgres.DefaultConfig().Version(fetched).Port(0).Logger(io.Discard).
		CachePath(f.archives).RuntimePath(filepath.Join(tmp, "run")).DataPath(data).
		BinariesPath(unpacked)
	if repository != "" {
		cfg = cfg.BinaryRepositoryURL(repository)
	}
	e := embeddedpostgres.NewDatabase(cfg)
	failed := e.Start() // as it must
	removeOpenLogs()
	runtime.KeepAlive(e) // it has its log open until here
	// It asks by the default client, whose idle connections would look like leaks to whoever counts
	// goroutines.
	http.DefaultClient.CloseIdleConnections()

	if _, err := check(filepath.Join(unpacked, "bin")); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = failed
		}
		return fmt.Errorf("download: %w", err)
	}
	return nil
}

// serve makes a URL of a repository that is a folder.
func serve(repository string) (string, func(), error) {
	folder := strings.TrimPrefix(repository, "file://")
	if !filepath.IsAbs(folder) {
		return strings.TrimSuffix(repository, "/"), func() {}, nil
	}
	if _, err := os.Stat(folder); err != nil {
		return "", nil, fmt.Errorf("WEIR_POSTGRES_REPOSITORY: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: http.FileServer(http.Dir(folder))}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // until it is closed
	}()
	return "http://" + l.Addr().String(), func() { _ = server.Close(); <-done }, nil
}

// publish lets every user read and run what was unpacked, whatever the umask.
func publish(home, unpacked string) error {
	if err := os.Chmod(home, 0o755); err != nil {
		return err
	}
	return filepath.WalkDir(unpacked, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if d.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}

// removeOpenLogs removes the log that embedded-postgres puts into the temporary folder and forgets.
// Others may have theirs there, so it must be one that this process has open.
func removeOpenLogs() {
	// a good pattern
	logs, _ := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	open, _ := os.ReadDir("/dev/fd") // without it the log stays, which is all
	for _, log := range logs {
		its, err := os.Lstat(log)
		if err != nil {
			continue
		}
		for _, fd := range open {
			if info, err := os.Stat(filepath.Join("/dev/fd", fd.Name())); err == nil &&
				os.SameFile(info, its) {
				_ = os.Remove(log)
			}
		}
	}
}
