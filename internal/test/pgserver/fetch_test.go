//go:build unix

package pgserver

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// The download, from a local stand-in for Maven Central, by three at once. What it unpacks is this
// machine's server, made anything but reachable; it must run, for root too, whose files the
// server's user cannot read.
func TestAServerIsDownloadedWhereThereIsNone(t *testing.T) {
	t.Parallel()
	ours(t)
	archive := jar(t)
	var downloads atomic.Int32
	var asked atomic.Value
	mirror := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".sha256") {
			_, _ = fmt.Fprintf(w, "%x", sha256.Sum256(archive))
			return
		}
		downloads.Add(1)
		asked.Store(r.URL.Path)
		_, _ = w.Write(archive)
	}))
	var connections atomic.Int32
	mirror.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			connections.Add(1)
		case http.StateClosed:
			connections.Add(-1)
		}
	}
	mirror.Start()
	defer mirror.Close()

	f := fetcher{home: filepath.Join(shared(t), "cache"), archives: t.TempDir(), repository: mirror.URL + "/"}
	logs := embeddedLogs(t)
	bins := make([]string, 3)
	var wg sync.WaitGroup
	for i := range bins {
		wg.Go(func() {
			var err error
			if bins[i], err = f.fetch(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, bin := range bins {
		if bin != bins[0] {
			t.Errorf("unpacked into %s and %s", bin, bins[0])
		}
	}
	if left, err := filepath.Glob(filepath.Join(f.home, "*")); err != nil || len(left) != 1 {
		t.Errorf("the cache has %v (%v), want one folder", left, err)
	}
	// Those of another run of the tests may be there for a while.
	until(t, "no more logs of embedded-postgres are in the temporary folder than before", func() bool {
		return embeddedLogs(t) <= logs
	})
	until(t, "no connection is kept, which pgtest would take for a leak", func() bool {
		return connections.Load() == 0
	})

	s, err := create(t.Context(), bins[0], nil, &options{})
	if err != nil {
		t.Fatal(err)
	}
	query(t, s, "SELECT version()")
	if err := s.Stop(); err != nil {
		t.Error(err)
	}

	t.Run("once", func(t *testing.T) {
		before := downloads.Load()
		if bin, err := f.fetch(); err != nil || bin != bins[0] || downloads.Load() != before {
			t.Errorf("got %s and %v after %d more downloads", bin, err, downloads.Load()-before)
		}
	})
	t.Run("from a folder", func(t *testing.T) {
		folder := t.TempDir()
		file := filepath.Join(folder, asked.Load().(string))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, archive, 0o644); err != nil {
			t.Fatal(err)
		}
		for _, repository := range []string{folder, "file://" + folder} {
			f := fetcher{home: t.TempDir(), archives: t.TempDir(), repository: repository}
			if _, err := f.fetch(); err != nil {
				t.Errorf("%s: %v", repository, err)
			}
		}
	})
	t.Run("not", func(t *testing.T) {
		const closed = "http://127.0.0.1:1" // a port that the system lends to nobody
		empty := httptest.NewServer(http.NotFoundHandler())
		defer empty.Close()
		for repository, want := range map[string]string{
			closed:              "unable to connect to " + closed,
			empty.URL:           "no version found matching " + string(fetched),
			"/no/such/folder":   "WEIR_POSTGRES_REPOSITORY",
			"file:///no/folder": "WEIR_POSTGRES_REPOSITORY",
		} {
			home := t.TempDir()
			_, err := fetcher{home: home, archives: t.TempDir(), repository: repository}.fetch()
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", repository, err, want)
			}
			if left, err := os.ReadDir(home); err != nil || len(left) != 0 {
				t.Errorf("%s: the cache has %v (%v), want nothing", repository, left, err)
			}
		}
	})
}

// embeddedLogs counts what embedded-postgres leaves in the temporary folder.
func embeddedLogs(t *testing.T) int {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(logs)
}

// jar packs this machine's server as the repository does: a zip with a compressed tar in it, which
// only its owner can read.
func jar(t *testing.T) []byte {
	t.Helper()
	for _, tool := range []string{"tar", "xz"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: packing an archive takes %s: %v", tool, err)
		}
	}
	machine, err := newFinder().find()
	if err != nil {
		t.Skipf("skipped: there is no server to pack: %v", err)
	}
	tree := t.TempDir()
	libraries, err := filepath.Glob(filepath.Join(machine, "..", "lib", "*.so"))
	if err != nil {
		t.Fatal(err)
	}
	for folder, files := range map[string][]string{
		"bin": {filepath.Join(machine, "postgres"), filepath.Join(machine, "initdb"), filepath.Join(machine, "pg_ctl")},
		"lib": libraries, // the rest a server finds where it was built for
	} {
		if err := os.Mkdir(filepath.Join(tree, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(tree, folder, filepath.Base(file)), b, 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	tar := exec.CommandContext(t.Context(), "tar", "-C", tree, "-cJf", "-", "bin", "lib")
	tar.Env = append(os.Environ(), "XZ_OPT=-0")
	packed, err := tar.Output()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, err := z.Create("postgres-linux-x86_64.txz")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, bytes.NewReader(packed)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestTheErrorWithoutAServerSaysThreeWaysToMendIt(t *testing.T) {
	t.Parallel()
	_, notFound := finder{globs: []string{"/usual/place"}, pgConfig: noPgConfig}.find()
	_, notFetched := fetcher{home: t.TempDir(), archives: t.TempDir(), repository: "http://127.0.0.1:1"}.fetch()
	err := fmt.Errorf("pgserver: %w", helpless(notFound, notFetched))
	for _, want := range []string{"looked in", "/usual/place", "http://127.0.0.1:1",
		"apt-get install postgresql", "set PGBIN", "WEIR_POSTGRES_REPOSITORY", "DATABASE_URL"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
	if strings.Count(err.Error(), "pgserver: ") != 1 {
		t.Errorf("%q says pgserver more than once", err)
	}
	t.Log(err)
}
