// Workers that compete for one lock: worker PEER PORTS WORKERS SECONDS (protocol: ../run.py).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	pools "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	redislock "github.com/redislock/redislock/clients/go"
)

const (
	ttl         = 30 * time.Second
	mostWaiting = 100 // requests of one client that redislock lets wait at the server
)

// doing runs the work of a worker under the lock.
type doing = func(worker int, work func()) error

func connect(port string, workers int) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, PoolSize: max(20, workers)})
}

// queued has as many clients as let all workers wait.
func queued(port string, workers int) doing {
	var clients []*redis.Client
	for room := 0; room < workers; room += mostWaiting {
		clients = append(clients, connect(port, workers))
	}
	return func(worker int, work func()) error {
		client := clients[worker%len(clients)]
		return redislock.Do(context.Background(), client, "bench", redislock.Options{TTL: ttl},
			func(context.Context, *redislock.Held) error { work(); return nil })
	}
}

func locking(peer string, ports []string, workers int) doing {
	ctx := context.Background()
	switch peer {
	case "bsm/redislock":
		locker := bsm.New(connect(ports[0], workers))
		options := &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)}
		return func(_ int, work func()) error {
			patient, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			lock, err := locker.Obtain(patient, "bench", ttl, options)
			if err != nil {
				return err
			}
			work()
			return lock.Release(ctx)
		}
	case "redsync":
		var masters []pools.Pool
		for _, port := range ports {
			masters = append(masters, goredis.NewPool(connect(port, workers)))
		}
		locker := redsync.New(masters...)
		return func(_ int, work func()) error {
			mutex := locker.NewMutex("bench", redsync.WithExpiry(ttl), redsync.WithTries(10_000))
			if err := mutex.Lock(); err != nil {
				return err
			}
			work()
			_, err := mutex.Unlock()
			return err
		}
	}
	return queued(ports[0], workers)
}

type tally struct {
	Grants    []int   `json:"grants"`
	Waits     []int64 `json:"waits"`
	Handovers int     `json:"handovers"`
}

func measure(withIt doing, workers int, length time.Duration) tally {
	result := tally{Grants: make([]int, workers)}
	end, last := time.Now().Add(length), -1
	var mutex sync.Mutex
	var team sync.WaitGroup
	for worker := 0; worker < workers; worker++ {
		team.Add(1)
		go func() {
			defer team.Done()
			for asked := time.Now(); asked.Before(end); asked = time.Now() {
				err := withIt(worker, func() {
					mutex.Lock()
					defer mutex.Unlock()
					result.Waits = append(result.Waits, time.Since(asked).Microseconds())
					if time.Now().After(end) {
						return
					}
					result.Grants[worker]++
					if last != worker {
						result.Handovers++
					}
					last = worker
				})
				check(err)
			}
		}()
	}
	team.Wait()
	return result
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	check(err)
	return value
}

func main() {
	if len(os.Args) != 5 {
		check(errors.New("usage: worker PEER PORTS WORKERS SECONDS"))
	}
	workers, seconds := number(os.Args[3]), number(os.Args[4])
	withIt := locking(os.Args[1], strings.Split(os.Args[2], ","), workers)
	measure(withIt, workers, time.Second)
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	check(json.NewEncoder(os.Stdout).Encode(measure(withIt, workers, time.Duration(seconds)*time.Second)))
}
