package citus

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// tick is the unit of /proc/<pid>/stat, in microseconds: Linux tells processes a hundred a second.
const tick = 10_000

// servers are the postmasters of the cluster, if they run on this machine: of the coordinator
// first.
func servers(b testing.TB, pool *pgxpool.Pool) (pids []string) {
	b.Helper()
	const sql = `SELECT array_agg(split_part(result, E'\n', 1) ORDER BY groupid)
		FROM run_command_on_all_nodes($$SELECT pg_read_file('postmaster.pid')$$) JOIN pg_dist_node USING (nodeid)`
	if err := pool.QueryRow(b.Context(), sql).Scan(&pids); err != nil {
		b.Logf("the servers' CPU is not known: %v", err)
		return nil
	}
	for _, pid := range pids {
		if comm, err := os.ReadFile("/proc/" + pid + "/comm"); err != nil ||
			strings.TrimSpace(string(comm)) != "postgres" {
			b.Logf("the servers' CPU is not known: they run elsewhere")
			return nil
		}
	}
	return pids
}

// cpu is what a server's processes have used, in microseconds, those that have ended as well.
func cpu(postmaster string) (sum float64) {
	stats, _ := os.ReadDir("/proc")
	for _, dir := range stats {
		raw, err := os.ReadFile("/proc/" + dir.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(raw), ") ") // after the name: state, ppid, ...
		f := strings.Fields(rest)
		used := []int{11, 12} // utime, stime
		switch {
		case len(f) < 15:
			continue
		case dir.Name() == postmaster:
			used = append(used, 13, 14) // and those of children that have ended
		case f[1] != postmaster:
			continue
		}
		for _, i := range used {
			n, _ := strconv.ParseFloat(f[i], 64)
			sum += n * tick
		}
	}
	return sum
}

// machine is the CPU time that all cores of this machine have had so far, and how much of it was
// used, in microseconds. Both are 0 where /proc/stat is about other cores than this process has, as
// in some containers.
func machine() (had, used float64) {
	raw, _ := os.ReadFile("/proc/stat")
	if strings.Count(string(raw), "\ncpu") != runtime.NumCPU() {
		return 0, 0
	}
	sum, _, _ := strings.Cut(string(raw), "\n")
	const idle, iowait = 3, 4                        // after user, nice and system
	for i, field := range strings.Fields(sum)[1:9] { // the others are parts of these
		n, _ := strconv.ParseFloat(field, 64)
		if had += n * tick; i != idle && i != iowait {
			used += n * tick
		}
	}
	return had, used
}

// cost is what n calls that run makes have used of the servers, a call: on the coordinator and on
// all workers, in microseconds.
func cost(pids []string, n int, run func() error) (coordinator, workers float64, err error) {
	before := make([]float64, len(pids))
	for i, pid := range pids {
		before[i] = cpu(pid)
	}
	if err := run(); err != nil {
		return 0, 0, err
	}
	for i, pid := range pids {
		if used := (cpu(pid) - before[i]) / float64(n); i == 0 {
			coordinator = used
		} else {
			workers += used
		}
	}
	return coordinator, workers, nil
}

// report reports cost, where it is known.
func report(b *testing.B, pids []string, prefix string, n int, run func() error) {
	b.Helper()
	if pids == nil {
		return
	}
	coordinator, workers, err := cost(pids, n, run)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(coordinator, prefix+"coordinator-us")
	b.ReportMetric(workers, prefix+"workers-us")
}
