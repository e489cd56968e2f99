package slotline

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/hand"
)

// givenKey is the key of a job's metadata that says that it was given a slot once.
const givenKey = "weir_slot"

// WasGiven says that a job was given a slot once.
func WasGiven(job *rivertype.JobRow) bool {
	return strings.Contains(string(job.Metadata), `"`+givenKey+`"`)
}

// holderOf is the holder of a slot that was given to a job, until the job claims it.
func holderOf(job int64) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, "weir job ", job)).String()
}

// tenantOf is a place as a row has it: the length of the name, name and key.
func tenantOf(p hand.Place) string { return fmt.Sprintf("%d %s %s", len(p.Name), p.Name, p.Key) }

func placeOf(tenant string) (hand.Place, bool) {
	length, rest, _ := strings.Cut(tenant, " ")
	n, err := strconv.Atoi(length)
	if err != nil || n < 1 || n >= len(rest) || rest[n] != ' ' {
		return hand.Place{}, false
	}
	return hand.Place{Name: rest[:n], Key: rest[n+1:]}, true
}
