package rpclimit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-go/weir/httplimit"
)

// statusOf says in a status what an answer in HTTP would say.
func statusOf(ctx context.Context, refusal httplimit.Refusal) *status.Status {
	switch refusal.Status {
	case http.StatusTooManyRequests:
		return denial(refusal)
	case http.StatusForbidden:
		return plain(code.Code_PERMISSION_DENIED, "the call has no key for its rate limit")
	case http.StatusBadRequest:
		return plain(code.Code_INVALID_ARGUMENT,
			"the call costs more than its rate limit could ever grant")
	case http.StatusInternalServerError:
		return plain(code.Code_INTERNAL, "the rate limit is asked in a wrong way")
	}
	switch err := ctx.Err(); {
	case errors.Is(err, context.Canceled):
		return plain(code.Code_CANCELLED, "the call was canceled")
	case errors.Is(err, context.DeadlineExceeded):
		return plain(code.Code_DEADLINE_EXCEEDED, "the call's deadline has passed")
	}
	return plain(code.Code_UNAVAILABLE, "the rate limit cannot be asked")
}

func plain(c code.Code, message string) *status.Status {
	return &status.Status{Code: int32(c), Message: message}
}

// longest is the longest wait, of 292 years, with room for its jitter and for rounding it up.
const longest = math.MaxInt64 - 2*time.Minute

func denial(refusal httplimit.Refusal) *status.Status {
	delay := jitter(min(refusal.Result.RetryAfter(), longest))
	quota := &errdetails.QuotaFailure{}
	for _, name := range refusal.Policies {
		quota.Violations = append(quota.Violations,
			&errdetails.QuotaFailure_Violation{Subject: "limit:" + name})
	}
	return &status.Status{
		Code: int32(code.Code_RESOURCE_EXHAUSTED),
		Message: fmt.Sprintf("rate limit exceeded (%s): retry after %v",
			strings.Join(refusal.Policies, ", "),
			(delay + time.Millisecond - 1).Truncate(time.Millisecond)),
		Details: details(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)}, quota),
	}
}

func details(messages ...proto.Message) (all []*anypb.Any) {
	for _, m := range messages {
		// it fails for text that is not UTF-8, and names are ASCII
		if a, err := anypb.New(m); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// jitter moves d on by up to a fifth, and at most by a minute, so that clients that were denied
// together do not come back together.
func jitter(d time.Duration) time.Duration {
	return d + rand.N(min(d/5, time.Minute)+1)
}
