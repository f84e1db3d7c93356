package redislock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	answer     = 2 * time.Second // in which a healthy server answers
	maxWaiting = 100             // connections that wait in the server's queues, for each client
	maxOpening = 10              // connections that attempts open at once: a few are open soon
)

var links sync.Map // of redis.UniversalClient to *link

// link has connections of our own, with the settings of the user's client, but not its timeouts and
// retries. Each is a client with one connection: closing it is the only way to end a read.
type link struct {
	client        redis.UniversalClient
	cluster       *redis.ClusterClient // nil if it is none
	followsMaster bool
	waiting       chan struct{}
	opening       chan struct{}
	openedAt      atomic.Int64 // by now(): the last connection

	mutex sync.Mutex
	idle  map[string][]*redis.Client // by address
}

func linkOf(client redis.UniversalClient) (*link, error) {
	if found, ok := links.Load(client); ok {
		return found.(*link), nil
	}
	made := &link{client: client, idle: map[string][]*redis.Client{}}
	made.waiting, made.opening = make(chan struct{}, maxWaiting), make(chan struct{}, maxOpening)
	made.openedAt.Store(int64(now()))
	switch known := client.(type) {
	case *redis.Client:
		if known == nil {
			return nil, failure(ErrInvalid, "the client is nil")
		}
		made.followsMaster = known.Options().Addr == "FailoverClient"
	case *redis.ClusterClient:
		made.cluster, made.followsMaster = known, true
	default:
		return nil, failure(ErrInvalid, "the client must be a *redis.Client or *redis.ClusterClient")
	}
	found, _ := links.LoadOrStore(client, made)
	return found.(*link), nil
}

// Close closes the idle connections that locks of this client have used, and forgets the client.
func Close(client redis.UniversalClient) {
	if found, ok := links.LoadAndDelete(client); ok {
		own := found.(*link)
		own.mutex.Lock()
		defer own.mutex.Unlock()
		for _, connections := range own.idle {
			for _, connection := range connections {
				_ = connection.Close()
			}
		}
		own.idle = nil // holds that are left keep none
	}
}

// call sends one command, once, and returns the reply. limit: for the answer, 0: none.
func (l *link) call(
	ctx context.Context, key string, limit time.Duration, words []any,
) (any, error) {
	reply, err := l.ask(ctx, key, limit, false, func() []any { return words })
	var silence *Error
	if errors.As(err, &silence) && silence.sending != nil {
		silence.sending.abandon()
	}
	return reply, err
}

// ask is the same for a command that is built just before the sending, and that may have to queue
// for a connection: a renewal or a release never does. Its limit is for that, too, but the answer has
// time. The error of a command without an answer has the sending: it is to be abandoned.
func (l *link) ask(
	ctx context.Context, key string, limit time.Duration, mayQueue bool, build func() []any,
) (any, error) {
	moved, began := "", now()
	left := func() time.Duration {
		if mayQueue && limit > 0 {
			return max(time.Millisecond, began+limit-now())
		}
		return limit
	}
	for redirected := 0; ; redirected++ {
		connection, err := l.connected(ctx, moved, key, mayQueue, left)
		if err != nil {
			return nil, unanswered(ctx, err, nil)
		}
		within := limit
		if mayQueue && limit > 0 {
			within = max(answer, left())
		}
		reply, err := l.send(connection, build()).wait(ctx, within)
		var no redis.Error
		if err == nil || !errors.As(err, &no) {
			return reply, err
		}
		words := strings.Fields(no.Error()) // MOVED slot address
		if l.cluster == nil || words[0] != "MOVED" || redirected == 5 {
			return nil, refused(no.Error(), l.followsMaster)
		}
		moved = words[2] // a node that redirects has done nothing
		l.rediscover(ctx)
	}
}

// sending is a command on its way. The connection is kept for others when the reply is here.
type sending struct {
	connection *redis.Client
	over       atomic.Bool // answered or abandoned, whatever comes first
	done       chan struct{}
	reply      any
	err        error
}

func (l *link) send(connection *redis.Client, words []any) *sending {
	s := &sending{connection: connection, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.reply, s.err = connection.Do(context.Background(), words...).Result()
		if errors.Is(s.err, redis.Nil) {
			s.reply, s.err = nil, nil
		}
		isReply := s.err == nil || isErrorReply(s.err)
		if s.over.CompareAndSwap(false, true) && isReply && !isDeposed(s.err, l.followsMaster) {
			l.keep(connection)
		} else {
			_ = connection.Close()
		}
	}()
	return s
}

// wait returns an error reply of the server as it is.
func (s *sending) wait(ctx context.Context, limit time.Duration) (any, error) {
	asking, cancel := ctx, context.CancelFunc(func() {})
	if limit > 0 {
		asking, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	select {
	case <-s.done:
	case <-asking.Done():
		return nil, unanswered(ctx, errors.New("the server does not reply"), s)
	}
	if s.err == nil || isErrorReply(s.err) {
		return s.reply, s.err
	}
	return nil, unanswered(ctx, s.err, s)
}

// isRefused: is the reply here, and null or an error?
func (s *sending) isRefused() bool {
	select {
	case <-s.done:
		return s.reply == nil && (s.err == nil || isErrorReply(s.err))
	default:
		return false
	}
}

// abandon closes the connection, which is the only way to end a read.
func (s *sending) abandon() {
	if s.over.CompareAndSwap(false, true) {
		_ = s.connection.Close()
	}
}

// isErrorReply: the server's errors begin with a word in capitals; those of the client do not.
func isErrorReply(err error) bool {
	var reply redis.Error
	code, _, _ := strings.Cut(err.Error(), " ")
	return errors.As(err, &reply) && len(code) > 1 && code == strings.ToUpper(code)
}

// isDeposed: the master that this connection goes to is none any more.
func isDeposed(err error, followsMaster bool) bool {
	return followsMaster && err != nil && strings.HasPrefix(err.Error(), "READONLY")
}

func unanswered(ctx context.Context, err error, asked *sending) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	silence := failure(ErrUnavailable, "no reply from the server: %v", err)
	silence.cause, silence.sending = ctx.Err(), asked
	return silence
}

// connected returns an idle connection, or a new one that the server has answered on.
func (l *link) connected(
	ctx context.Context, moved, key string, mayQueue bool, left func() time.Duration,
) (*redis.Client, error) {
	step := func() (context.Context, context.CancelFunc) {
		if within := left(); within > 0 && within < answer {
			return context.WithTimeout(ctx, within)
		}
		return context.WithTimeout(ctx, answer)
	}
	limited, cancel := step()
	defer cancel()
	base, _ := l.client.(*redis.Client)
	if l.cluster != nil {
		node, err := l.cluster.MasterForKey(limited, key)
		if err != nil {
			return nil, err
		}
		base = node
	}
	options := settings(base.Options())
	if moved != "" {
		options.Addr = moved
	}
	leave := 0
	if mayQueue {
		leave = 1 // for a release: waiters must not take it from the holder
	}
	if idle := l.takeIdle(options.Addr, leave); idle != nil {
		return idle, nil
	}
	if mayQueue {
		select {
		case l.opening <- struct{}{}:
		case <-limited.Done():
			return nil, limited.Err()
		}
		defer func() { <-l.opening }()
		if idle := l.takeIdle(options.Addr, leave); idle != nil { // since then
			return idle, nil
		}
	}
	opening, cancelOpening := step()
	defer cancelOpening()
	return l.open(opening, options)
}

// open makes a connection. One that is late is kept for the next attempt: another one takes as long.
func (l *link) open(limited context.Context, options *redis.Options) (*redis.Client, error) {
	made, opened := redis.NewClient(options), make(chan error)
	giveUp := time.AfterFunc(5*answer, func() { _ = made.Close() })
	go func() {
		err := made.Ping(context.Background()).Err()
		isOpen := giveUp.Stop() && (err == nil || isErrorReply(err))
		if isOpen {
			l.openedAt.Store(int64(now()))
			err = nil
		} else {
			_ = made.Close()
		}
		select {
		case opened <- err:
		case <-limited.Done():
			if isOpen {
				l.keep(made)
			}
		}
	}()
	select {
	case err := <-opened:
		return made, err
	case <-limited.Done():
		return nil, limited.Err()
	}
}

// settings of the user's client, but with one connection, no read timeout and no retries.
func settings(theirs *redis.Options) *redis.Options {
	return &redis.Options{
		Network: theirs.Network, Addr: theirs.Addr, Dialer: theirs.Dialer, TLSConfig: theirs.TLSConfig,
		Username: theirs.Username, Password: theirs.Password, DB: theirs.DB,
		CredentialsProvider:        theirs.CredentialsProvider,
		CredentialsProviderContext: theirs.CredentialsProviderContext,
		ClientName:                 theirs.ClientName,
		Protocol:                   theirs.Protocol,
		OnConnect:                  theirs.OnConnect,
		DialTimeout:                answer, ReadTimeout: -1, WriteTimeout: -1, MaxRetries: -1,
		PoolSize: 1, ConnMaxIdleTime: -1, ConnMaxLifetime: -1,
	}
}

func (l *link) keep(connection *redis.Client) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	address := connection.Options().Addr
	if idle := l.idle[address]; l.idle == nil || len(idle) >= maxWaiting {
		_ = connection.Close()
	} else {
		l.idle[address] = append(idle, connection)
	}
}

// takeIdle returns nil if no more than so many are left.
func (l *link) takeIdle(address string, leave int) *redis.Client {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	idle := l.idle[address]
	if len(idle) <= leave {
		return nil
	}
	l.idle[address] = idle[:len(idle)-1]
	return idle[len(idle)-1]
}

// rediscover lets the client ask the cluster where its slots are now.
func (l *link) rediscover(ctx context.Context) {
	if l.cluster != nil {
		l.cluster.ReloadState(ctx)
	}
}
