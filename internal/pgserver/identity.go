//go:build unix

package pgserver

import (
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
	return nil, fmt.Errorf("pgserver: Postgres refuses to run as root, and there is neither a user postgres nor nobody: add one, or run as another user")
}

// sysProcAttr makes a command run as user.
func sysProcAttr(user *identity) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: user.credential()}
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

// own hands the folder over, with the password in it.
func (i *identity) own(root, password string) error {
	file := filepath.Join(root, "password")
	if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	if i == nil {
		return nil
	}
	for _, path := range []string{file, root} {
		if err := os.Chown(path, int(i.uid), int(i.gid)); err != nil {
			return fmt.Errorf("pgserver: %w", err)
		}
	}
	for dir := filepath.Dir(root); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("pgserver: %w", err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("pgserver: the server runs as %s, who cannot enter %s: set TMPDIR to a folder that everybody can enter, /tmp say", i.name, dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}
