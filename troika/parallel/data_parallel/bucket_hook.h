// What DataParallelOptions::hook takes, beside data_parallel.h.
#pragma once

#include <troika/compress/bucket_hook.h>
#include <troika/compress/compressors.h>
