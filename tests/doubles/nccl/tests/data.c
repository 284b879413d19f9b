/* Every collective computes the correct result for every type. Three ranks. */
#include <rank.h>

enum { N = 5 };

static ncclComm_t comm;

/* Prints the value found if it differs. */
#define EXPECT_(is_so, format, ...) \
    do {                            \
        if (!(is_so))               \
            FAIL("%s: " format, #is_so, __VA_ARGS__); \
    } while (0)

static void floats_are_reduced(void)
{
    float *in = floats(N * world), *out = floats(N * world);
    const struct { ncclRedOp_t op; float expected; } ops[] = {
        /* reductions of 1 + i, 2 + i and 3 + i, for i = 1 */
        {ncclSum, 9}, {ncclProd, 24}, {ncclMax, 4}, {ncclMin, 2}, {ncclAvg, 3},
    };
    for (size_t k = 0; k < sizeof ops / sizeof *ops; ++k) {
        for (int i = 0; i < N; ++i)
            in[i] = (float)(1 + rank + i);
        NCCL(ncclAllReduce(in, out, N, ncclFloat32, ops[k].op, comm, stream));
        synchronize();
        EXPECT_(out[1] == ops[k].expected, "op %d: %g", ops[k].op, out[1]);
    }
    /* In place, with a result at the root only. */
    for (int i = 0; i < N; ++i)
        out[i] = (float)(10 * rank + i);
    NCCL(ncclReduce(out, rank == 1 ? out : NULL, N, ncclFloat32, ncclSum, 1, comm, stream));
    synchronize();
    EXPECT_(out[2] == (rank == 1 ? 36 : 10 * rank + 2), "%g", out[2]);
    /* From the root. */
    for (int i = 0; i < N; ++i)
        in[i] = (float)(rank + i);
    NCCL(ncclBroadcast(rank == 2 ? in : NULL, out, N, ncclFloat32, 2, comm, stream));
    NCCL(ncclBcast(in, N, ncclFloat32, 2, comm, stream));
    synchronize();
    EXPECT_(out[3] == 5 && in[3] == 5, "%g %g", out[3], in[3]);
    /* All parts at all ranks: rank r's part at r * N. */
    for (int i = 0; i < N; ++i)
        in[i] = (float)(100 * rank + i);
    NCCL(ncclAllGather(in, out, N, ncclFloat32, comm, stream));
    synchronize();
    for (int r = 0; r < world; ++r)
        EXPECT_(out[r * N + 4] == 100 * r + 4, "%g", out[r * N + 4]);
    for (int i = 0; i < N * world; ++i)
        in[i] = (float)(i + rank);
    NCCL(ncclReduceScatter(in, out, N, ncclFloat32, ncclSum, comm, stream));
    synchronize();
    EXPECT_(out[1] == 3 * (rank * N + 1) + 3, "%g", out[1]);
    /* Rank r's part for every rank, and the parts gathered and scattered by rank 1. */
    float *parts = floats(N * world);
    for (int i = 0; i < N * world; ++i)
        parts[i] = (float)(100 * rank + i);
    NCCL(ncclAlltoAll(parts, out, N, ncclFloat32, comm, stream));
    synchronize();
    for (int r = 0; r < world; ++r)
        EXPECT_(out[r * N + 2] == 100 * r + rank * N + 2, "%g", out[r * N + 2]);
    NCCL(ncclGather(parts, rank == 1 ? out : NULL, N, ncclFloat32, 1, comm, stream));
    synchronize();
    for (int r = 0; r < world && rank == 1; ++r)
        EXPECT_(out[r * N + 3] == 100 * r + 3, "%g", out[r * N + 3]);
    NCCL(ncclScatter(rank == 1 ? parts : NULL, out, N, ncclFloat32, 1, comm, stream));
    synchronize();
    EXPECT_(out[4] == 100 + rank * N + 4, "%g", out[4]);
    /* Each rank's own factor: 2 * 1 + 3 * 2 + 4 * 3. */
    ncclRedOp_t scaled;
    float factor = (float)(2 + rank);
    NCCL(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
    EXPECT_((int)scaled == 5 + rank, "%d", scaled);
    factor = 0; /* it was already read */
    in[0] = (float)(1 + rank);
    NCCL(ncclAllReduce(in, out, 1, ncclFloat32, scaled, comm, stream));
    NCCL(ncclRedOpDestroy(scaled, comm));
    synchronize();
    EXPECT_(out[0] == 20, "%g", out[0]);
    EXPECT(ncclAllReduce(in, out, 1, ncclFloat32, scaled, comm, stream) == ncclInvalidArgument);
}

static void all_types_are_reduced(void)
{
    const unsigned long long ones[ncclNumTypes] = {
        1, 1, 1, 1, 1, 1, 0x3c00, 0x3f800000, 0x3ff0000000000000, 0x3f80, 0x38, 0x3c,
    };
    const unsigned long long threes[ncclNumTypes] = {
        3, 3, 3, 3, 3, 3, 0x4200, 0x40400000, 0x4008000000000000, 0x4040, 0x44, 0x42,
    };
    unsigned long long *value = (unsigned long long *)floats(2);
    for (int type = 0; type < ncclNumTypes; ++type) {
        *value = ones[type];
        NCCL(ncclAllReduce(value, value, 1, (ncclDataType_t)type, ncclSum, comm, stream));
        synchronize();
        EXPECT_(*value == threes[type], "type %d: %llx", type, *value);
    }
}

static void messages_arrive(void)
{
    float *in = floats(N), *out = floats(N);
    int next = (rank + 1) % world, before = (rank + world - 1) % world;
    for (int round = 0; round < 3; ++round) {
        in[0] = (float)(10 * round + rank);
        NCCL(ncclGroupStart());
        NCCL(ncclSend(in, N, ncclFloat32, next, comm, stream));
        NCCL(ncclRecv(out, N, ncclFloat32, before, comm, stream));
        NCCL(ncclGroupEnd());
        synchronize();
        EXPECT_(out[0] == 10 * round + before, "%g", out[0]);
    }
    /* A message to the rank itself. */
    NCCL(ncclGroupStart());
    NCCL(ncclRecv(out, N, ncclFloat32, rank, comm, stream));
    NCCL(ncclSend(in, N, ncclFloat32, rank, comm, stream));
    NCCL(ncclGroupEnd());
    synchronize();
    EXPECT_(out[0] == 20 + rank, "%g", out[0]);
    /* Several messages of one pair, in order; rank 2 has none. */
    if (rank < 2) {
        in[0] = 1, in[1] = 2;
        NCCL(ncclGroupStart());
        for (int i = 0; i < 2; ++i) {
            if (rank == 0)
                NCCL(ncclSend(in + i, 1, ncclFloat32, 1, comm, stream));
            else
                NCCL(ncclRecv(out + i, 1, ncclFloat32, 0, comm, stream));
        }
        NCCL(ncclGroupEnd());
        synchronize();
        EXPECT_(rank == 0 || (out[0] == 1 && out[1] == 2), "%g %g", out[0], out[1]);
    }
}

static void one_alone_and_nothing_at_all(void)
{
    ncclComm_t alone;
    float *in = floats(1), *out = floats(1);
    *in = 7;
    NCCL(ncclCommSplit(comm, rank, 0, &alone, NULL));
    NCCL(ncclAllReduce(in, out, 1, ncclFloat32, ncclSum, alone, stream));
    /* An empty collective does nothing, even if only this rank calls it. */
    if (rank == 1)
        NCCL(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, comm, stream));
    synchronize();
    EXPECT_(*out == 7, "%g", *out);
    NCCL(ncclCommDestroy(alone));
}

int main(void)
{
    begin();
    comm = join();
    floats_are_reduced();
    all_types_are_reduced();
    messages_arrive();
    one_alone_and_nothing_at_all();
    leave(comm);
    return 0;
}
