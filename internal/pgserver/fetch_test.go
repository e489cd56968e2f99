//go:build unix

package pgserver

import (
	"archive/zip"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// The download, from a local stand-in for Maven Central: what it unpacks must run, for root too.
func TestAServerIsDownloadedWhereThereIsNone(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"tar", "xz"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: packing an archive takes %s: %v", tool, err)
		}
	}
	var asked sync.Map
	archive := jar(t)
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.URL.Path, true)
		if !strings.HasSuffix(r.URL.Path, ".jar") {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(archive)
	}))
	defer mirror.Close()
	defer http.DefaultClient.CloseIdleConnections()

	cache, err := os.MkdirTemp("", "weir-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(cache) })
	if err := os.Chmod(cache, 0o755); err != nil {
		t.Fatal(err)
	}

	bins := make([]string, 3)
	var wg sync.WaitGroup
	for i := range bins {
		wg.Go(func() {
			var err error
			if bins[i], err = fetch(cache, mirror.URL); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	user, err := unprivileged()
	if err != nil {
		t.Fatal(err)
	}
	for _, bin := range bins {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "postgres"), "-V")
		cmd.Dir = "/"
		cmd.SysProcAttr = sysProcAttr(user)
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "PostgreSQL") {
			t.Errorf("%s: %s: %v", bin, out, err)
		}
	}
	left, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("the cache has %v (%v), want one folder", left, err)
	}

	mirror.Close()
	if _, err := fetch(cache, mirror.URL); err != nil {
		t.Errorf("the second time nothing needs to be downloaded: %v", err)
	}
	if _, err := fetch(t.TempDir(), mirror.URL); err == nil || !strings.Contains(err.Error(), "download") {
		t.Errorf("without a mirror: %v", err)
	}
}

// jar packs programs as the mirror does: a zip with a compressed tar in it. They are scripts; that real ones run from any
// folder is their makers' part.
func jar(t *testing.T) []byte {
	t.Helper()
	bin := fakeBin(t, "tree", "bin", string(fetched))
	if err := os.WriteFile(filepath.Join(bin, "pg_ctl"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	tar := exec.CommandContext(context.Background(), "tar", "-C", filepath.Dir(bin), "-cJf", "-", ".")
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
	t.Setenv("WEIR_POSTGRES_REPOSITORY", "http://127.0.0.1:1")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	if os.Geteuid() == 0 {
		if dir, err := cacheDir(); err == nil {
			if _, err := os.Stat(dir); err == nil {
				t.Skipf("skipped: %s has a download", dir)
			}
		}
	}
	_, err := binaries(finder{pgConfig: func(string) (string, error) { return "", os.ErrNotExist }})
	if os.Geteuid() == 0 {
		if dir, err := cacheDir(); err == nil {
			_ = os.Remove(dir)
		}
	}
	if err == nil {
		t.Fatal("found a server")
	}
	for _, want := range []string{"looked in", "apt-get install postgresql", "PGBIN", "WEIR_POSTGRES_REPOSITORY", "DATABASE_URL"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}
