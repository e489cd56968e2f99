//go:build unix

package pgtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-go/weir/internal/test/pgserver"
)

// Faketime sets the clock of a server ahead of this program's, or behind it: by is "+2s" or "-2s".
// It skips the test where libfaketime is not installed.
func Faketime(t testing.TB, by string) pgserver.Option {
	t.Helper()
	libraries, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(libraries) == 0 {
		const why = "skipped: libfaketime is not installed (Debian: apt-get install faketime)"
		fmt.Printf("%s: %s\n", t.Name(), why)
		t.Skip(why)
	}
	t.Cleanup(func() { // each process that ends in haste leaves two files, named after it
		files, _ := filepath.Glob("/dev/shm/*faketime_*")
		for _, file := range files {
			nr, err := strconv.Atoi(file[strings.LastIndex(file, "_")+1:])
			if err == nil && errors.Is(syscall.Kill(nr, 0), syscall.ESRCH) {
				_ = os.Remove(file) // another test may be faster
			}
		}
	})
	return pgserver.Env("LD_PRELOAD="+libraries[0], "FAKETIME="+by, "FAKETIME_DONT_FAKE_MONOTONIC=1")
}
