//go:build unix

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// identity is the user that the server runs as. Nil: the one that we are.
type identity struct {
	name     string
	uid, gid uint32
}

// unprivileged returns whom to run the server as, since it refuses root.
func unprivileged() (*identity, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		return &identity{name, uint32(uid), uint32(gid)}, nil
	}
	return nil,
		errors.New("the server refuses to run as root, and there is neither a user postgres nor nobody: " +
			"add one, or run as another user")
}

func (i *identity) credential() *syscall.Credential {
	if i == nil {
		return nil
	}
	return &syscall.Credential{Uid: i.uid, Gid: i.gid}
}

func (i *identity) as() string {
	if i == nil {
		return ""
	}
	return " as " + i.name
}

// folder makes the cluster's folder, with the password in it, and hands it over.
func (i *identity) folder(password string, durable bool) (_ string, err error) {
	parent, err := i.parent(durable)
	if err != nil {
		return "", err
	}
	root, err := os.MkdirTemp(parent, "weir-postgres-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(root)
		}
	}()
	if err := i.write(filepath.Join(root, "password"), password); err != nil {
		return "", err
	}
	if i != nil {
		if err := os.Chown(root, int(i.uid), int(i.gid)); err != nil {
			return "", err
		}
	}
	return root, nil
}

// write makes a file that only the server's user can read.
func (i *identity) write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	if i == nil {
		return nil
	}
	return os.Chown(path, int(i.uid), int(i.gid))
}

// parent is where the folder goes: into TMPDIR or, where that is not set, into memory for a cluster
// that need not be durable, or else into /tmp. The server's user has to be able to work there.
func (i *identity) parent(durable bool) (string, error) {
	dirs := []string{os.TempDir()}
	if memory := inMemory(plenty); !durable && os.Getenv("TMPDIR") == "" && memory != "" {
		dirs = []string{memory, os.TempDir()}
	}
	if i == nil {
		return filepath.Abs(dirs[0])
	}
	var errs []error
	for _, dir := range append(dirs, "/tmp") {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return "", err
		}
		err = usable(dir)
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "",
		fmt.Errorf("the server runs as %s, who needs a temporary folder: %w: set TMPDIR to one that everybody can write to",
			i.name, errors.Join(errs...))
}

// plenty is the room that there has to be in memory for the folder to go there: the tests' clusters
// grow to some hundred megabytes each, and up to four packages are tested at once.
const plenty = 8 << 30

// usable checks that everybody can enter dir, and make and remove folders there.
func usable(dir string) error {
	need := os.FileMode(0o003)
	for at := dir; ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&need != need {
			return fmt.Errorf("%s does not do, as %s has mode %v", dir, at, info.Mode().Perm())
		}
		if at == filepath.Dir(at) {
			return nil
		}
		need = 0o001
	}
}
