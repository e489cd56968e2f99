package rpclimit_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/rpclimit"
	"github.com/weir-go/weir/rpclimit/connectlimit"
	"github.com/weir-go/weir/rpclimit/grpclimit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	unary    = testpb.TestService_UnaryCall_FullMethodName
	duplex   = testpb.TestService_FullDuplexCall_FullMethodName
	never    = 1000 * time.Hour // in which no token comes
	patience = time.Minute      // with a busy machine
)

func limiter(t testing.TB, cfg ratelimit.Config) *ratelimit.Limiter {
	t.Helper()
	l, err := ratelimit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// user is whom the calls say that they are from, as an authentication would have it.
func user(_ context.Context, call *rpclimit.Call) (string, error) {
	return strings.Join(call.Header("user"), ""), nil
}

// service is a server's own code: nil handles without a word.
type service struct {
	unary  func(ctx context.Context, in *testpb.SimpleRequest) error
	stream func(ctx context.Context) error
	ran    atomic.Int64 // handlers that began
}

func (s *service) call(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	s.ran.Add(1)
	if s.unary != nil {
		if err := s.unary(ctx, in); err != nil {
			return nil, err
		}
	}
	return &testpb.SimpleResponse{}, nil
}

func (s *service) open(ctx context.Context) error {
	s.ran.Add(1)
	if s.stream != nil {
		return s.stream(ctx)
	}
	return nil
}

// client calls a server: with a user, and for a stream with as many messages, each of which is
// answered.
type client struct {
	call   func(ctx context.Context, header http.Header, in *testpb.SimpleRequest) told
	stream func(ctx context.Context, header http.Header, messages int) told
}

// told is what a client learns.
type told struct {
	code   code.Code
	text   string
	header http.Header
	retry  *errdetails.RetryInfo
	quota  *errdetails.QuotaFailure
	others int // details
}

func as(user string) http.Header { return http.Header{"User": {user}} }

func (t *told) detail(message any) {
	switch m := message.(type) {
	case *errdetails.RetryInfo:
		t.retry = m
	case *errdetails.QuotaFailure:
		t.quota = m
	default:
		t.others++
	}
}

// kinds of servers and their clients: each starts a server that the test ends.
var kinds = map[string]func(t testing.TB, s *service, g *rpclimit.Guard, asks ...rpclimit.Ask) client{
	"GRPC": startGRPC,
	"Connect": func(t testing.TB, s *service, g *rpclimit.Guard, asks ...rpclimit.Ask) client {
		return startConnect(t, s, g, asks)
	},
	"ConnectByGRPC": func(t testing.TB, s *service, g *rpclimit.Guard, asks ...rpclimit.Ask) client {
		return startConnect(t, s, g, asks, connect.WithGRPC())
	},
	"ConnectByGRPCWeb": func(t testing.TB, s *service, g *rpclimit.Guard, asks ...rpclimit.Ask) client {
		return startConnect(t, s, g, asks, connect.WithGRPCWeb())
	},
}

// each runs a test for each kind.
func each(t *testing.T, test func(t *testing.T,
	start func(testing.TB, *service, *rpclimit.Guard, ...rpclimit.Ask) client)) {
	t.Parallel()
	for name, start := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start)
		})
	}
}

type grpcService struct {
	testpb.UnimplementedTestServiceServer
	*service
}

func (s grpcService) UnaryCall(ctx context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	return s.call(ctx, in)
}

func (s grpcService) FullDuplexCall(stream testpb.TestService_FullDuplexCallServer) error {
	if err := s.open(stream.Context()); err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

func startGRPC(t testing.TB, s *service, g *rpclimit.Guard, asks ...rpclimit.Ask) client {
	t.Helper()
	recovered := func(ctx context.Context, in any, _ *grpc.UnaryServerInfo,
		next grpc.UnaryHandler) (out any, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = status.Error(codes.Internal, "recovered")
			}
		}()
		return next(ctx, in)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(recovered, grpclimit.Unary(g, asks...)),
		grpc.ChainStreamInterceptor(grpclimit.Stream(g, asks...)),
	)
	testpb.RegisterTestServiceServer(server, grpcService{service: s})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	c := testpb.NewTestServiceClient(conn)
	return client{
		call: func(ctx context.Context, header http.Header, in *testpb.SimpleRequest) told {
			var md metadata.MD
			_, err := c.UnaryCall(outgoing(ctx, header), in, grpc.Header(&md))
			return ofGRPC(err, md)
		},
		stream: func(ctx context.Context, header http.Header, messages int) told {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stream, err := c.FullDuplexCall(outgoing(ctx, header))
			if err != nil {
				return ofGRPC(err, nil)
			}
			for range messages {
				if err = stream.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
					break // Recv has the reason
				}
				if _, err = stream.Recv(); err != nil {
					break
				}
			}
			_ = stream.CloseSend()
			if err == nil || errors.Is(err, io.EOF) {
				_, err = stream.Recv()
			}
			md, _ := stream.Header()
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return ofGRPC(err, md)
		},
	}
}

func outgoing(ctx context.Context, header http.Header) context.Context {
	for name, values := range header {
		for _, v := range values {
			ctx = metadata.AppendToOutgoingContext(ctx, name, v)
		}
	}
	return ctx
}

func ofGRPC(err error, md metadata.MD) told {
	s := status.Convert(err)
	all := told{code: code.Code(s.Code()), text: s.Message(), header: http.Header{}}
	for name, values := range md {
		all.header[http.CanonicalHeaderKey(name)] = values
	}
	for _, d := range s.Details() {
		all.detail(d)
	}
	return all
}

func startConnect(
	t testing.TB, s *service, g *rpclimit.Guard, asks []rpclimit.Ask, options ...connect.ClientOption,
) client {
	t.Helper()
	server := serveConnect(t, s, g, asks...)
	one := connect.NewClient[testpb.SimpleRequest, testpb.SimpleResponse](server.Client(), server.URL+unary, options...)
	many := connect.NewClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse](
		server.Client(), server.URL+duplex, options...)
	return client{
		call: func(ctx context.Context, header http.Header, in *testpb.SimpleRequest) told {
			req := connect.NewRequest(in)
			for name, values := range header {
				req.Header()[name] = values
			}
			res, err := one.CallUnary(ctx, req)
			if err != nil {
				return ofConnect(err, nil)
			}
			return ofConnect(nil, res.Header())
		},
		stream: func(ctx context.Context, header http.Header, messages int) told {
			stream := many.CallBidiStream(ctx)
			for name, values := range header {
				stream.RequestHeader()[name] = values
			}
			err := stream.Send(nil)
			for range messages {
				if err = stream.Send(&testpb.StreamingOutputCallRequest{}); err != nil {
					break
				}
				if _, err = stream.Receive(); err != nil {
					break
				}
			}
			_ = stream.CloseRequest()
			if err == nil || errors.Is(err, io.EOF) {
				_, err = stream.Receive()
			}
			got := stream.ResponseHeader()
			_ = stream.CloseResponse()
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return ofConnect(err, got)
		},
	}
}

// serveConnect serves HTTP/1.1 and, over TLS, HTTP/2.
func serveConnect(t testing.TB, s *service, g *rpclimit.Guard, asks ...rpclimit.Ask) *httptest.Server {
	t.Helper()
	options := connect.WithHandlerOptions(
		connect.WithRecover(func(context.Context, connect.Spec, http.Header, any) error {
			return connect.NewError(connect.CodeInternal, errors.New("recovered"))
		}),
		connect.WithInterceptors(connectlimit.Interceptor(g, asks...)),
	)
	mux := http.NewServeMux()
	mux.Handle(unary, connect.NewUnaryHandler(unary,
		func(ctx context.Context, in *connect.Request[testpb.SimpleRequest]) (*connect.Response[testpb.SimpleResponse],
			error) {
			out, err := s.call(ctx, in.Msg)
			if err != nil {
				return nil, err
			}
			return connect.NewResponse(out), nil
		}, options))
	mux.Handle(duplex, connect.NewBidiStreamHandler(duplex,
		func(ctx context.Context, stream *connect.BidiStream[testpb.StreamingOutputCallRequest,
			testpb.StreamingOutputCallResponse]) error {
			if err := s.open(ctx); err != nil {
				return err
			}
			for {
				if _, err := stream.Receive(); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				if err := stream.Send(&testpb.StreamingOutputCallResponse{}); err != nil {
					return err
				}
			}
		}, options))
	server := httptest.NewUnstartedServer(mux)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(func() {
		server.Client().CloseIdleConnections()
		server.Close()
	})
	return server
}

func ofConnect(err error, header http.Header) told {
	all := told{header: header}
	if err == nil {
		return all
	}
	var e *connect.Error
	if !errors.As(err, &e) {
		return told{code: code.Code_UNKNOWN, text: err.Error()}
	}
	all = told{code: code.Code(e.Code()), text: e.Message(), header: e.Meta()}
	for _, d := range e.Details() {
		v, err := d.Value()
		if err != nil {
			all.others++
			continue
		}
		all.detail(v)
	}
	return all
}
