package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	modpath "golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// pack writes the modules into a folder as a module proxy serves them, all at one version:
// GOPROXY=file://<dir> finds them. Packed are the files that git knows, as they are in the working
// tree: what was never added is missing for users, too.
func pack(root string, all []module, version, dir string) error {
	for _, m := range all {
		if err := packOne(root, m, version, dir); err != nil {
			return fmt.Errorf("pack %s: %w", m.path, err)
		}
	}
	return nil
}

func packOne(root string, m module, version, dir string) error {
	files, err := packedFiles(root, m)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	v := modpath.Version{Path: m.path, Version: version}
	if err := zip.Create(&archive, v, files); err != nil {
		return err
	}
	mod, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.dir), "go.mod"))
	if err != nil {
		return err
	}
	info, err := json.Marshal(map[string]any{"Version": version, "Time": time.Now().UTC()})
	if err != nil {
		return err
	}
	escaped, err := modpath.EscapePath(m.path)
	if err != nil {
		return err
	}
	at := filepath.Join(dir, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": info, version + ".mod": mod,
		version + ".zip": archive.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(at, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// packedFiles are the files of a module's folder. Package zip leaves out those of modules below it.
// A module without a license gets that of the root, as the go command does it.
func packedFiles(root string, m module) ([]zip.File, error) {
	listed, err := git(root, "ls-files", "-z", "--", m.dir)
	if err != nil {
		return nil, err
	}
	var files []zip.File
	licensed := false
	for name := range strings.SplitSeq(strings.Trim(listed, "\x00"), "\x00") {
		file := packed{name: strings.TrimPrefix(name, m.dir+"/"),
			at: filepath.Join(root, filepath.FromSlash(name))}
		licensed = licensed || file.name == "LICENSE"
		files = append(files, file)
	}
	if license := filepath.Join(root, "LICENSE"); !licensed {
		if _, err := os.Stat(license); err != nil {
			return nil, err
		}
		files = append(files, packed{name: "LICENSE", at: license})
	}
	return files, nil
}

// packed is a file of the working tree, for package zip.
type packed struct{ name, at string }

func (f packed) Path() string                 { return f.name }
func (f packed) Lstat() (os.FileInfo, error)  { return os.Lstat(f.at) }
func (f packed) Open() (io.ReadCloser, error) { return os.Open(f.at) }
