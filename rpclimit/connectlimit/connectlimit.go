package connectlimit

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/status"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/rpclimit"
)

// Interceptor limits the calls that a handler serves, unary calls and streams. The handler runs if
// all of asks are granted, in one call of the limiter. Otherwise nothing is taken, and the client
// gets a *connect.Error with the code and details of [rpclimit.Guard.Answer]. The tokens are taken
// for good when the handler begins, also if it fails or panics. It may give back the result of
// [rpclimit.FromContext].
//
// For a stream it takes once, before the handler runs and before the first message is read, so
// [rpclimit.Call.Message] is nil. To limit messages, call the limiter in the handler, and [Pass].
//
// No ask may reserve, with OrReserve or Within: the handler would run ahead of its tokens. On a
// client the interceptor limits nothing.
func Interceptor(guard *rpclimit.Guard, asks ...rpclimit.Ask) connect.Interceptor {
	return &interceptor{guard, slices.Clone(asks)}
}

type interceptor struct {
	guard *rpclimit.Guard
	asks  []rpclimit.Ask
}

// WrapUnary implements [connect.Interceptor].
func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if req.Spec().IsClient {
			return next(ctx, req)
		}
		ctx, err := i.take(ctx, callOf(req, req.Header(), req.Any()), responseHeader(ctx))
		if err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

// WrapStreamingClient implements [connect.Interceptor], and does nothing.
func (*interceptor) WrapStreamingClient(
	next connect.StreamingClientFunc,
) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements [connect.Interceptor].
func (i *interceptor) WrapStreamingHandler(
	next connect.StreamingHandlerFunc,
) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx, err := i.take(ctx, callOf(conn, conn.RequestHeader(), nil), conn.ResponseHeader())
		if err != nil {
			return err
		}
		return next(ctx, conn)
	}
}

// described is what requests and connections have in common.
type described interface {
	Spec() connect.Spec
	Peer() connect.Peer
}

func callOf(d described, header http.Header, message any) *rpclimit.Call {
	return &rpclimit.Call{
		Procedure: d.Spec().Procedure, Address: d.Peer().Addr, Header: header.Values,
		Message: message,
	}
}

func (i *interceptor) take(
	ctx context.Context, call *rpclimit.Call, told http.Header,
) (context.Context, error) {
	ctx, res, err := i.guard.Take(ctx, call, i.asks)
	return ctx, pass(ctx, i.guard, call.Procedure, told, res, err)
}

// Pass is for handlers that call the limiter themselves, for example in a transaction. It returns
// nil if the call may continue, and otherwise the error to return: what the interceptor would
// return. Call it after COMMIT, with what [ratelimit.Limiter.InTx] has returned, whose denial may
// be err. An err that is a *connect.Error, or wraps one, is returned as it is.
//
// It also sets the guard's Fields, unless the header has been sent. ctx is that of the handler.
func Pass(ctx context.Context, guard *rpclimit.Guard, res ratelimit.Result, err error) error {
	procedure := ""
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		procedure = info.Spec().Procedure
	}
	return pass(ctx, guard, procedure, responseHeader(ctx), res, err)
}

// responseHeader is that of the call that is served. Where there is none, nobody will read it.
func responseHeader(ctx context.Context) http.Header {
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		return info.ResponseHeader()
	}
	return http.Header{}
}

func pass(
	ctx context.Context, guard *rpclimit.Guard, procedure string, told http.Header,
	res ratelimit.Result, err error,
) error {
	var own *connect.Error
	if errors.As(err, &own) {
		return err
	}
	header, refused := guard.Answer(ctx, procedure, res, err)
	for name, values := range header {
		told[name] = append(told[name], values...)
	}
	if refused != nil {
		return failure(refused)
	}
	return nil
}

func failure(s *status.Status) error {
	err := connect.NewError(connect.Code(s.Code), errors.New(s.Message)) //nolint:gosec // it is one of 17
	for _, any := range s.Details {
		if detail, e := connect.NewErrorDetail(any); e == nil { // an Any is never refused
			err.AddDetail(detail)
		}
	}
	return err
}
