package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// machine is what the figures were measured on, and with what.
type machine struct {
	postgres, redis string
	modules         []module
}

type module struct{ path, version string }

// named are the modules whose versions are told.
var named = []string{
	"github.com/jackc/pgx/v5",
	"github.com/redis/go-redis/v9",
	"github.com/go-redis/redis_rate/v10",
	"github.com/throttled/throttled/v2",
	"golang.org/x/time",
	"github.com/sethvargo/go-limiter",
}

func newMachine(ctx context.Context, at place) (m machine, err error) {
	if err := at.pool.QueryRow(ctx, "SHOW server_version").Scan(&m.postgres); err != nil {
		return m, err
	}
	m.postgres, _, _ = strings.Cut(m.postgres, " ") // what follows is the packager's
	info, err := at.redis.Info(ctx, "server").Result()
	if err != nil {
		return m, err
	}
	m.redis = field(info, "redis_version")
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return m, fmt.Errorf("this program does not know the modules that it was built of")
	}
	for _, d := range build.Deps {
		if slices.Contains(named, d.Path) {
			m.modules = append(m.modules, module{d.Path, d.Version})
		}
	}
	return m, nil
}

// field is the value of the first line "name: value" of a text, in which blanks do not count.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// fileField is field of a file of Linux's, and "unknown" elsewhere.
func fileField(file, name string) string {
	text, err := os.ReadFile(file)
	if value := field(string(text), name); err == nil && value != "" {
		return value
	}
	return "unknown"
}

func memorySize() string {
	var kib float64
	if _, err := fmt.Sscanf(fileField("/proc/meminfo", "MemTotal"), "%f kB", &kib); err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.1f GiB", kib/(1<<20))
}

func kernel() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return runtime.GOOS
	}
	return "Linux " + strings.TrimSpace(string(release))
}

func (m machine) String() string {
	var b strings.Builder
	b.WriteString("| | |\n|---|---|\n")
	row := func(what, is string) { fmt.Fprintf(&b, "| %s | %s |\n", what, is) }
	row("cores", fmt.Sprintf("%d, for the callers and both servers, and other programs",
		runtime.NumCPU()))
	row("CPU", fileField("/proc/cpuinfo", "model name"))
	row("memory", memorySize())
	row("kernel", fmt.Sprintf("%s (%s)", kernel(), runtime.GOARCH))
	row("Go", strings.TrimPrefix(runtime.Version(), "go"))
	row("Postgres", m.postgres)
	row("Redis", m.redis)
	for _, mod := range m.modules {
		row(mod.path, mod.version)
	}
	return b.String()
}
