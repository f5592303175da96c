"""What the plots show: histograms, latencies and figures."""
