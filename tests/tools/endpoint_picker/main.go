// Scrapes one pod as the endpoint picker of the Gateway API Inference Extension does, with the picker's own code, and
// prints what it understood: endpoint-picker HOST:PORT TIMES.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/backend/metrics"
	"sigs.k8s.io/gateway-api-inference-extension/pkg/epp/framework/interface/datalayer"
)

func main() {
	pod, times := &datalayer.EndpointMetadata{MetricsHost: os.Args[1]}, os.Args[2]
	// The defaults of the picker's flags.
	picker, err := metrics.NewPodMetricsClientImpl(logr.Discard(), metrics.Config{
		ModelServerMetricsScheme:     "http",
		ModelServerMetricsPath:       "/metrics",
		TotalQueuedRequestsMetric:    "vllm:num_requests_waiting",
		TotalRunningRequestsMetric:   "vllm:num_requests_running",
		KVCacheUsagePercentageMetric: "vllm:kv_cache_usage_perc",
		CacheInfoMetric:              "vllm:cache_config_info",
	})
	check(err)
	count, err := strconv.Atoi(times)
	check(err)
	state := datalayer.NewMetrics()
	for range count {
		state, err = picker.FetchMetrics(context.Background(), pod, state)
		check(err)
		// Its refresh interval.
		time.Sleep(50 * time.Millisecond)
	}
	check(json.NewEncoder(os.Stdout).Encode(state))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
