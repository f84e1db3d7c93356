package redislock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	answer     = 2 * time.Second // that a healthy server needs for an answer at most
	maxWaiting = 100             // connections that wait in the server's queues, for each client
)

var (
	started = time.Now()
	links   sync.Map // of redis.UniversalClient to *link
)

func sinceStart() time.Duration { return time.Since(started) }

// link has connections of our own, with the settings of the user's client, but not its timeouts and
// retries. Each is a client with one connection: closing it is the only way to end a read.
type link struct {
	client        redis.UniversalClient
	cluster       *redis.ClusterClient // nil if it is none
	followsMaster bool
	waiting       chan struct{}

	mutex sync.Mutex
	moved map[string]string        // addresses by key
	idle  map[string][]*connection // by address
}

func linkOf(client redis.UniversalClient) (*link, error) {
	made := &link{client: client, waiting: make(chan struct{}, maxWaiting)}
	made.moved, made.idle = map[string]string{}, map[string][]*connection{}
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
		own.idle = map[string][]*connection{}
	}
}

// builder makes a command just before it is sent, with the limit for its answer; 0: none.
type builder func() ([]any, time.Duration)

func command(limit time.Duration, words []any) builder {
	return func() ([]any, time.Duration) { return words, limit }
}

// ask carries out one command. A node of a cluster that redirects has done nothing, so the next one
// is asked.
func (l *link) ask(
	ctx context.Context, key string, patience time.Duration, build builder,
) (any, error) {
	for redirected := 0; ; redirected++ {
		reply, err := l.askOnce(ctx, key, patience, build)
		var no *refused
		if l.cluster == nil || redirected == 5 || !errors.As(err, &no) || no.code != "MOVED" {
			return reply, err
		}
		words := strings.Fields(no.text) // MOVED slot address
		l.mutex.Lock()
		l.moved[key] = words[len(words)-1]
		l.mutex.Unlock()
		l.cluster.ReloadState(ctx)
	}
}

// askWaiting is ask on one of the connections that may wait. until: for getting one, 0 for ever.
func (l *link) askWaiting(
	ctx context.Context, key string, until time.Duration, build builder,
) (any, error) {
	turn := ctx
	if until != 0 {
		limited, cancel := context.WithTimeout(ctx, until-now())
		defer cancel()
		turn = limited
	}
	select {
	case l.waiting <- struct{}{}:
		defer func() { <-l.waiting }()
		return l.ask(ctx, key, answer, build)
	case <-turn.Done():
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, &noAnswer{cause: fmt.Errorf("%d requests of this client wait already", maxWaiting)}
	}
}

func (l *link) askOnce(
	ctx context.Context, key string, patience time.Duration, build builder,
) (any, error) {
	connected, err := l.connected(ctx, key, patience)
	if err != nil {
		return nil, l.unanswered(ctx, err, false)
	}
	words, limit := build()
	asking, cancel := context.WithCancel(ctx)
	if limit > 0 {
		asking, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	connected.stale.Store(&cancel)
	alive := context.AfterFunc(asking, func() { _ = connected.Close() })
	reply, err := connected.Do(asking, words...).Result()
	switch {
	case !alive() && connected.wasStale.Load():
		return l.askOnce(ctx, key, patience, build) // nothing was sent
	case asking.Err() != nil:
		return nil, l.unanswered(ctx, errors.New("the server does not answer"), true)
	case errors.Is(err, redis.Nil):
		l.putBack(connected)
		return nil, nil
	case err == nil:
		l.putBack(connected)
		return reply, nil
	case isReply(err):
		if l.followsMaster && strings.HasPrefix(err.Error(), "READONLY") {
			_ = connected.Close() // the next one goes to the new master
		} else {
			l.putBack(connected)
		}
		code, _, _ := strings.Cut(err.Error(), " ")
		return nil, &refused{code: code, text: err.Error()}
	default:
		_ = connected.Close()
		return nil, l.unanswered(ctx, err, true)
	}
}

// isReply: the server's errors begin with a word in capitals; those of the client do not.
func isReply(err error) bool {
	var reply redis.Error
	code, _, _ := strings.Cut(err.Error(), " ")
	return errors.As(err, &reply) && len(code) > 1 && code == strings.ToUpper(code)
}

func (l *link) unanswered(ctx context.Context, err error, sent bool) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return &noAnswer{cause: err, sent: sent}
}

// connection is a client with one connection. It dials once: what the server closed is not opened
// again behind our back.
type connection struct {
	*redis.Client
	address  string
	dialed   atomic.Bool
	wasStale atomic.Bool
	stale    atomic.Pointer[context.CancelFunc] // ends the command that finds it closed
}

var errStale = errors.New("the server has closed the connection")

// connected returns an idle connection, or a new one that the server has answered on.
func (l *link) connected(
	ctx context.Context, key string, patience time.Duration,
) (*connection, error) {
	connecting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	base, _ := l.client.(*redis.Client)
	if l.cluster != nil {
		node, err := l.cluster.MasterForKey(connecting, key)
		if err != nil {
			return nil, err
		}
		base = node
	}
	options := settings(base.Options(), patience)
	if address, ok := l.movedTo(key, options.Addr); ok {
		options.Addr = address
	}
	if idle := l.takeIdle(options.Addr); idle != nil {
		return idle, nil
	}
	made := &connection{address: options.Addr}
	dial := options.Dialer
	options.Dialer = func(ctx context.Context, network, address string) (net.Conn, error) {
		if made.dialed.Load() {
			made.wasStale.Store(true)
			(*made.stale.Load())()
			return nil, errStale
		}
		opened, err := dial(ctx, network, address)
		made.dialed.Store(err == nil)
		return opened, err
	}
	made.stale.Store(&cancel)
	made.Client = redis.NewClient(options)
	alive := context.AfterFunc(connecting, func() { _ = made.Close() })
	if err := made.Ping(connecting).Err(); err != nil && !isReply(err) {
		_ = made.Close()
		return nil, err
	}
	if !alive() {
		return nil, connecting.Err()
	}
	return made, nil
}

// settings of the user's client, but with one connection, no read timeout and no retries.
func settings(theirs *redis.Options, patience time.Duration) *redis.Options {
	return &redis.Options{
		Network: theirs.Network, Addr: theirs.Addr, Dialer: theirs.Dialer, TLSConfig: theirs.TLSConfig,
		Username: theirs.Username, Password: theirs.Password, DB: theirs.DB,
		CredentialsProvider:        theirs.CredentialsProvider,
		CredentialsProviderContext: theirs.CredentialsProviderContext,
		ClientName:                 theirs.ClientName,
		Protocol:                   theirs.Protocol,
		OnConnect:                  theirs.OnConnect,
		DialTimeout:                patience, ReadTimeout: -1, WriteTimeout: -1, MaxRetries: -1,
		PoolSize: 1, ConnMaxIdleTime: -1, ConnMaxLifetime: -1,
	}
}

// movedTo tells where the cluster has redirected requests for this key, until its client knows it.
func (l *link) movedTo(key, known string) (string, bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	address, ok := l.moved[key]
	if address == known {
		delete(l.moved, key)
	}
	return address, ok
}

func (l *link) takeIdle(address string) *connection {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	idle := l.idle[address]
	if len(idle) == 0 {
		return nil
	}
	l.idle[address] = idle[:len(idle)-1]
	return idle[len(idle)-1]
}

func (l *link) putBack(used *connection) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.idle[used.address] = append(l.idle[used.address], used)
}

// rediscover lets the client ask the cluster where its slots are now.
func (l *link) rediscover(ctx context.Context, key string) {
	if l.cluster != nil {
		l.mutex.Lock()
		delete(l.moved, key)
		l.mutex.Unlock()
		l.cluster.ReloadState(ctx)
	}
}
