package scheduler_test

import (
	"slices"
	"testing"

	"github.com/riverqueue/river"
)

// River takes any JSON as a job's metadata.
func TestAJobIsGivenASlotWhateverItsMetadataIs(t *testing.T) {
	t.Parallel()
	for name, metadata := range map[string]string{
		"Object": `{"own": 1}`, "Null": `null`, "Array": `[{"own": 1}]`, "Text": `"own"`, "Number": `1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrew(t, 1)
			open := c.gate(1)
			c.client(5)
			c.insert(0, nil)
			c.j.await(t, 1)
			c.insert(1, &river.InsertOpts{Metadata: []byte(metadata)})
			c.awaitWaiting(1)
			c.insert(2, nil)
			c.awaitWaiting(2)
			open()
			if got := numbersOf(c.worked(3)); !slices.Equal(got, []int{0, 1, 2}) {
				t.Errorf("started in the order %v", got)
			}
		})
	}
}

// A trigger of somebody else refuses a job, for example. It keeps its place, as a job of a paused
// queue does.
func TestAJobThatCannotBeGivenASlotIsPassedOver(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	open := c.gate(1)
	client := c.client(5)
	c.insert(0, nil)
	c.j.await(t, 1)
	refused := c.insert(1, nil)
	c.awaitWaiting(1)
	c.insert(2, nil)
	c.insert(3, nil)
	c.awaitWaiting(3)
	c.exec(t, `ALTER TABLE river_job ADD CHECK ((args->>'n') <> '1' OR state <> 'available')`)
	open()
	if got := numbersOf(c.j.await(t, 3)); !slices.Equal(got, []int{0, 2, 3}) {
		t.Errorf("started in the order %v", got)
	}
	eventually(t, "the others are completed", func() bool {
		return c.count(`SELECT count(*) FROM river_job WHERE state <> 'completed'`) == 1
	})
	if list := c.listed(c.sched.Jobs(client), "0", 10); len(list) != 1 || list[0].Job.ID != refused.ID {
		t.Errorf("%+v wait, want the job that was refused", list)
	}
}
