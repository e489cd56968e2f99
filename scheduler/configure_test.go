package scheduler_test

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// Clients poll as often as their configuration says, and notify of inserts no more often. Only
// queues without a FetchCooldown get one, and the caller may use the configuration again.
func TestConfigureSetsOnlyTheFetchCooldownOfQueuesWithoutOne(t *testing.T) {
	t.Parallel()
	limiter, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus()})
	if err != nil {
		t.Fatal(err)
	}
	own := &river.PluginDefaults{}
	cfg := &river.Config{ID: "one", JobTimeout: time.Hour, Logger: quiet(), MaxAttempts: 7, PollOnly: true,
		Plugins: []rivertype.Plugin{own}, RescueStuckJobsAfter: 2 * time.Hour, Schema: "jobs",
		FetchCooldown: 70 * time.Millisecond, FetchPollInterval: 3 * time.Second, Workers: river.NewWorkers(),
		Queues: map[string]river.QueueConfig{
			"plain": {MaxWorkers: 1},
			"polls": {MaxWorkers: 2, FetchPollInterval: 2 * time.Second},
			"cools": {MaxWorkers: 3, FetchCooldown: 50 * time.Millisecond},
			"both":  {MaxWorkers: 4, FetchCooldown: time.Second, FetchPollInterval: time.Minute},
		}}
	before := *cfg
	before.Queues, before.Plugins = maps.Clone(cfg.Queues), slices.Clone(cfg.Plugins)
	got := scheduler.New(limiter, scheduler.Config{}).Configure(new(pgxpool.Pool), cfg)
	if !reflect.DeepEqual(*cfg, before) {
		t.Errorf("the caller's configuration was\n%+v and is\n%+v", before, *cfg)
	}

	want := maps.Clone(before.Queues)
	for name, q := range want {
		if name == "plain" || name == "polls" {
			q.FetchCooldown = time.Millisecond
			want[name] = q
		}
	}
	if !maps.Equal(got.Queues, want) {
		t.Errorf("the queues are %+v, want %+v", got.Queues, want)
	}
	if len(got.Plugins) != 2 || got.Plugins[1] != rivertype.Plugin(own) {
		t.Errorf("the plugins are %v, want the scheduler's and the caller's", got.Plugins)
	}
	rest := *got
	rest.Queues, rest.Plugins = before.Queues, before.Plugins
	if !reflect.DeepEqual(rest, before) {
		t.Errorf("the configuration is\n%+v, want\n%+v", rest, before)
	}
}

// A client that only inserts has no queues, and gets none.
func TestConfigureAddsNoQueue(t *testing.T) {
	t.Parallel()
	limiter, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus()})
	if err != nil {
		t.Fatal(err)
	}
	got := scheduler.New(limiter, scheduler.Config{}).Configure(new(pgxpool.Pool), &river.Config{Logger: quiet()})
	if got.Queues != nil || got.FetchCooldown != 0 || got.FetchPollInterval != 0 {
		t.Errorf("%+v", got)
	}
}
