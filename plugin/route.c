#include "route.h"

#include "table.h"

enum { THREADS_MAX = 256, WARP = 32 };

const char *llane_route_text(enum llane_route route)
{
    static const char *const texts[] = {
#define LLANE_ROUTE_STRING(name, text) text,
        LLANE_ROUTES(LLANE_ROUTE_STRING)
#undef LLANE_ROUTE_STRING
    };
    return (unsigned)route < LLANE_N_ROUTES ? texts[route] : "unknown";
}

size_t llane_route_type_bytes(ncclDataType_t datatype)
{
    switch (datatype) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
        return 8;
    }
    return 0;
}

enum llane_route llane_route_choose(const struct llane_route_limits *limits, size_t count,
                                    ncclDataType_t datatype, ncclRedOp_t op)
{
    if (datatype != ncclFloat32 && datatype != ncclFloat16 && datatype != ncclBfloat16) {
        return LLANE_ROUTE_DATATYPE;
    }
    if (op != ncclSum && op != ncclAvg) {
        return LLANE_ROUTE_OPERATION;
    }
    if (count == 0) {
        return LLANE_ROUTE_EMPTY;
    }
    size_t size = llane_route_type_bytes(datatype);
    if (count > limits->max_bytes / size) {
        return LLANE_ROUTE_TOO_LARGE;
    }
    return count * size < limits->min_bytes ? LLANE_ROUTE_TOO_SMALL : LLANE_ROUTE_LANE;
}

struct llane_geometry llane_route_geometry(uint64_t bytes, uint32_t max_blocks)
{
    uint64_t lines = (bytes + LLANE_LINE_PAYLOAD - 1) / LLANE_LINE_PAYLOAD;
    if (lines <= THREADS_MAX) {
        uint32_t warps = (uint32_t)((lines + WARP - 1) / WARP);
        return (struct llane_geometry){1, (warps ? warps : 1) * WARP};
    }
    uint64_t blocks = (lines + THREADS_MAX - 1) / THREADS_MAX;
    return (struct llane_geometry){(uint32_t)(blocks < max_blocks ? blocks : max_blocks),
                                   THREADS_MAX};
}
