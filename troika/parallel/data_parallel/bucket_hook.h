// What DataParallelOptions::hook takes, beside data_parallel.h.
#pragma once

#include <troika/sync/gradients/bucket_hook.h>
