"""What `scripts.bench_memory` measures: networks, and programs that train them and read their own peak memory."""
