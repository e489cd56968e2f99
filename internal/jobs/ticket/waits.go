package ticket

import "github.com/riverqueue/river/rivertype"

// InLine returns the place in line of a job that waits for its turn, or nil.
func InLine(job *rivertype.JobRow) *Seat {
	t, ok := Of(job)
	if !ok || !t.Known() || t.Seat == nil || !t.Seat.Waits || !waits(job) {
		return nil
	}
	return t.Seat
}

// Waiting returns the ticket of a job that waits for its time.
func Waiting(job *rivertype.JobRow) (Ticket, bool) {
	t, ok := Of(job)
	ok = ok && t.Known() && t.Attempt == job.Attempt && t.Due != 0 && t.By < len(t.Rows()) &&
		waits(job)
	t.Due = job.ScheduledAt.UnixMicro() // it may have been moved
	return t, ok
}

func waits(job *rivertype.JobRow) bool {
	return job.State == rivertype.JobStateAvailable || job.State == rivertype.JobStateScheduled
}
