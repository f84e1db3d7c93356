// The library behind the driver protocol (clients/README.md).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	redislock "github.com/redislock/redislock/clients/go"
)

type ask struct {
	ID         int
	Op         string
	Client     string
	Held       string
	Mode       string
	Addresses  [][2]any
	Master     string
	Username   string
	Password   string
	Timeout    float64
	Unusual    bool
	Pool       int
	Name       any
	TTL        any
	Wait       any
	Shared     bool
	Limit      *int
	Owner      string
	Renew      *bool
	RenewEvery float64 `json:"renew_every"`
	Acquire    int
	Command    []string
	Work       string
	Cancelled  bool
}

type object map[string]any

var (
	errSkip = errors.New("not applicable")
	errWork = errors.New("of the work")
)

// driver has what the runner opened and asked for.
type driver struct {
	mutex   sync.Mutex
	clients map[string]redis.UniversalClient
	helds   map[string]*redislock.Held
	owners  map[string]*redislock.Owner
	cancels map[int]context.CancelFunc
}

// quiet: that servers go away is what the scenarios are about.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func main() {
	redis.SetLogger(quiet{})
	d := &driver{
		clients: map[string]redis.UniversalClient{},
		helds:   map[string]*redislock.Held{},
		owners:  map[string]*redislock.Owner{},
		cancels: map[int]context.CancelFunc{},
	}
	output := make(chan object)
	go func() {
		for line := range output {
			text, _ := json.Marshal(line)
			fmt.Println(string(text))
		}
	}()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var asked ask
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		ctx := context.Background()
		if asked.Op == "acquire" {
			cancellable, cancel := context.WithCancel(ctx)
			ctx = cancellable
			d.mutex.Lock()
			d.cancels[asked.ID] = cancel
			d.mutex.Unlock()
		}
		go func() {
			result, err := d.work(ctx, &asked)
			switch {
			case errors.Is(err, errSkip):
				output <- object{"id": asked.ID, "skip": err.Error()}
			case err != nil:
				output <- object{"id": asked.ID, "error": failure(err)}
			default:
				output <- object{"id": asked.ID, "ok": result}
			}
		}()
	}
}

func failure(err error) object {
	kinds := []struct {
		kind error
		name string
	}{
		{context.Canceled, "cancelled"}, {redislock.ErrBusy, "busy"}, {redislock.ErrLost, "lost"},
		{redislock.ErrQuarantined, "quarantined"}, {redislock.ErrUnavailable, "unavailable"},
		{redislock.ErrMisconfigured, "misconfigured"}, {redislock.ErrInvalid, "invalid"},
	}
	result := object{"kind": "unknown", "message": err.Error()}
	for _, one := range kinds {
		if errors.Is(err, one.kind) {
			result["kind"] = one.name
			break
		}
	}
	var own *redislock.Error
	if errors.As(err, &own) && own.RetryAfter > 0 {
		result["retry_after"] = milliseconds(own.RetryAfter)
	}
	return result
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func duration(value any) time.Duration {
	return time.Duration(value.(float64) * float64(time.Millisecond))
}

func (d *driver) work(ctx context.Context, asked *ask) (object, error) {
	d.mutex.Lock()
	client, held := d.clients[asked.Client], d.helds[asked.Held]
	d.mutex.Unlock()
	switch asked.Op {
	case "open":
		d.mutex.Lock()
		defer d.mutex.Unlock()
		d.clients[asked.Client] = open(asked)
	case "acquire":
		return d.acquire(ctx, asked, client)
	case "run":
		return d.run(ctx, asked, client)
	case "cancel":
		d.mutex.Lock()
		defer d.mutex.Unlock()
		d.cancels[asked.Acquire]()
	case "state":
		return object{"valid_for": milliseconds(held.ValidFor()), "lost": held.IsLost()}, nil
	case "await_lost":
		// At the signal ValidFor is 0. What was left of it is known from before.
		var end time.Time
		for {
			before := time.Now()
			if until := before.Add(held.ValidFor()); until.After(end) {
				end = until
			}
			select {
			case <-held.Lost():
				return object{"valid_for": max(0, milliseconds(time.Until(end)))}, nil
			case <-time.After(20 * time.Millisecond):
			}
		}
	case "release":
		if asked.Cancelled {
			done, cancel := context.WithCancel(ctx)
			cancel()
			ctx = done
		}
		return object{"held": held.Release(ctx)}, nil
	case "guard":
		reply, err := held.Guard(ctx, words(asked.Command)...)
		return object{"reply": reply}, err
	case "command":
		reply, err := client.Do(ctx, words(asked.Command)...).Result()
		return object{"reply": reply}, err
	case "close":
		return object{}, client.Close()
	default:
		return nil, fmt.Errorf("%w: not in this language", errSkip)
	}
	return object{}, nil
}

func words(command []string) []any {
	all := make([]any, len(command))
	for i, word := range command {
		all[i] = word
	}
	return all
}

func open(asked *ask) redis.UniversalClient {
	var addresses []string
	for _, address := range asked.Addresses {
		addresses = append(addresses, fmt.Sprintf("%v:%v", address[0], address[1]))
	}
	timeout := time.Duration(asked.Timeout) * time.Millisecond
	switch asked.Mode {
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses})
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: asked.Master, SentinelAddrs: addresses,
		})
	}
	protocol := 3
	if asked.Unusual {
		protocol = 2
	}
	return redis.NewClient(&redis.Options{Addr: addresses[0], Username: asked.Username,
		Password: asked.Password, ReadTimeout: timeout, PoolSize: asked.Pool, Protocol: protocol})
}

func (d *driver) acquire(
	ctx context.Context, asked *ask, client redis.UniversalClient,
) (object, error) {
	names, options, err := d.request(asked)
	if err != nil {
		return nil, err
	}
	held, err := redislock.AcquireAll(ctx, client, names, options)
	if err != nil {
		return nil, err
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.helds[asked.Held] = held
	return object{"fence": held.Fence()}, nil
}

func (d *driver) run(
	ctx context.Context, asked *ask, client redis.UniversalClient,
) (object, error) {
	names, options, err := d.request(asked)
	if err != nil {
		return nil, err
	}
	work := func(ctx context.Context, held *redislock.Held) error {
		if asked.Work == "release" {
			held.Release(ctx)
			return nil
		}
		for asked.Work == "guard" {
			if _, err := held.Guard(ctx, "INCR", "n"); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return errWork
	}
	err = redislock.Do(ctx, client, names[0], options, work)
	shown := []string{}
	if errors.Is(err, redislock.ErrLost) {
		shown = append(shown, "lost")
	}
	if errors.Is(err, errWork) {
		shown = append(shown, "work")
	}
	return object{"errors": shown}, nil
}

func (d *driver) request(asked *ask) ([]string, redislock.Options, error) {
	var names []string
	switch name := asked.Name.(type) {
	case string:
		names = []string{name}
	case []any:
		for _, one := range name {
			names = append(names, one.(string))
		}
	default:
		return nil, redislock.Options{}, errSkip
	}
	if _, number := asked.TTL.(float64); !number {
		return nil, redislock.Options{}, errSkip
	}
	options := redislock.Options{TTL: duration(asked.TTL), Shared: asked.Shared,
		NoRenew: asked.Renew != nil && !*asked.Renew, RenewEvery: duration(asked.RenewEvery)}
	switch asked.Wait {
	case nil:
	case 0.0:
		options.Wait = redislock.NoWait
	default:
		options.Wait = duration(asked.Wait)
	}
	if asked.Limit != nil {
		if options.Limit = *asked.Limit; options.Limit == 0 {
			return nil, options, fmt.Errorf("%w: a Limit of 0 means none", errSkip)
		}
	}
	if asked.Owner != "" {
		d.mutex.Lock()
		if d.owners[asked.Owner] == nil {
			d.owners[asked.Owner] = &redislock.Owner{}
		}
		options.Owner = d.owners[asked.Owner]
		d.mutex.Unlock()
	}
	return names, options, nil
}
