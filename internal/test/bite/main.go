// Bite breaks the library in one place at a time and runs the tests that guard that place: each
// must fail. It writes nothing to the tree, as the compiler is given the broken file in place of
// the real one.
//
//	go run ./internal/test/bite [-run regexp]
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	only := flag.String("run", "", "only mutants whose name matches")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *only)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bite:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only string) error {
	match, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "weir-bite-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bitten, left := 0, []string(nil)
	for i, m := range mutants {
		if !match.MatchString(m.name) {
			continue
		}
		start := time.Now()
		killed, output, err := m.bite(ctx, filepath.Join(dir, fmt.Sprint(i)))
		by := "SURVIVED"
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			by = "FAILED: " + err.Error()
			left = append(left, m.name)
		case killed:
			bitten++
			by = "killed by " + firstFailure(output)
		default:
			left = append(left, m.name)
		}
		fmt.Printf("%-58s %-5s %s\n", m.name, time.Since(start).Round(time.Second), by)
	}
	fmt.Printf("%d mutants killed, %d not\n", bitten, len(left))
	if len(left) > 0 {
		return fmt.Errorf("not killed: %s", strings.Join(left, "; "))
	}
	if bitten == 0 {
		return fmt.Errorf("no mutant matches %q", only)
	}
	return nil
}

// bite runs the mutant's tests. Whether it compiles is found out first: a mutant that does not is a
// fault of ours.
func (m mutant) bite(ctx context.Context, dir string) (killed bool, output []byte, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return false, nil, err
	}
	at, source, err := m.place(".")
	if err != nil {
		return false, nil, err
	}
	broken := filepath.Join(dir, filepath.Base(at))
	if err := os.WriteFile(broken, m.broken(source), 0o600); err != nil {
		return false, nil, err
	}
	real, err := filepath.Abs(at)
	if err != nil {
		return false, nil, err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{real: broken}})
	if err != nil {
		return false, nil, err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return false, nil, err
	}
	if strings.HasSuffix(at, ".go") {
		build := exec.CommandContext(ctx, "go", "build", "-o", os.DevNull, "-overlay", file,
			filepath.Dir(real))
		build.Dir = m.module(".")
		if out, err := build.CombinedOutput(); err != nil {
			return false, nil, fmt.Errorf("the mutant does not compile: %s", out)
		}
	}
	args := append([]string{"test", "-vet=off", "-count=1", "-failfast", "-timeout=3m", "-ldflags=-w",
		"-overlay", file, "-run", m.tests}, m.packages...)
	if m.rapid {
		args = append(args, "-rapid.nofailfile") // or it would write to the tree
	}
	test := exec.CommandContext(ctx, "go", args...)
	test.Dir = m.module(".")
	if slices.Contains(m.packages, jobs[0]) { // with those that make test leaves out
		test.Env = append(os.Environ(), "WEIR_TEST_DURATION=1s")
	}
	output, err = test.CombinedOutput()
	if ctx.Err() != nil {
		return false, nil, ctx.Err()
	}
	if err != nil && !bytes.Contains(output, []byte("--- FAIL")) &&
		!bytes.Contains(output, []byte("panic:")) {
		return false, nil, fmt.Errorf("the tests did not run: %s", output)
	}
	if bytes.Contains(output, []byte("no tests to run")) {
		return false, nil, fmt.Errorf("no test matches %q", m.tests)
	}
	return err != nil, output, nil
}

var failure = regexp.MustCompile(`--- FAIL: (\S+)`)

func firstFailure(output []byte) string {
	if m := failure.FindSubmatch(output); m != nil {
		return string(m[1])
	}
	return "a panic"
}
