/* Exercises ddp_doctor.h. Prints the first check that fails and exits with status 1. */
#include "ddp_doctor.h"

#include <assert.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static_assert(sizeof(ddp_doctor_call) == 80, "size");
static_assert(offsetof(ddp_doctor_call, op) == 0, "op");
static_assert(offsetof(ddp_doctor_call, dtype) == 1, "dtype");
static_assert(offsetof(ddp_doctor_call, reduce_op) == 2, "reduce_op");
static_assert(offsetof(ddp_doctor_call, ndim) == 3, "ndim");
static_assert(offsetof(ddp_doctor_call, flags) == 4, "flags");
static_assert(offsetof(ddp_doctor_call, group) == 8, "group");
static_assert(offsetof(ddp_doctor_call, site) == 12, "site");
static_assert(offsetof(ddp_doctor_call, tensors) == 16, "tensors");
static_assert(offsetof(ddp_doctor_call, root) == 20, "root");
static_assert(offsetof(ddp_doctor_call, tag) == 24, "tag");
static_assert(offsetof(ddp_doctor_call, numel) == 32, "numel");
static_assert(offsetof(ddp_doctor_call, dims) == 40, "dims");
static_assert(sizeof(ddp_doctor_text) == 16, "text");
static_assert(sizeof(ddp_doctor_identity) == 12, "identity");
static_assert(sizeof(ddp_doctor_options) == 72, "options");
static_assert(offsetof(ddp_doctor_options, attempt_plus_1) == 68, "attempt");
static_assert(sizeof(ddp_doctor_memory_sample) == 88, "memory");
static_assert(sizeof(ddp_doctor_parameter_list) == 96, "parameters");
static_assert(offsetof(ddp_doctor_parameter_list, values) == 56, "values");

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

#define text ddp_doctor_text_of

static void nothing_happens(void)
{
    ddp_doctor_call call = {0};
    uint32_t member = 0;
    CHECK(!ddp_doctor_is_open());
    CHECK(ddp_doctor_string(text("x")) == 0);
    CHECK(ddp_doctor_site(text("x"), text("y"), 1) == 0);
    CHECK(ddp_doctor_group(text("x"), text(""), text(""), 0, &member, 1) == 0);
    ddp_doctor_creation creation = {.op = 33, .members = &member, .member_count = 1};
    CHECK(ddp_doctor_creating(&creation) == 0);
    CHECK(ddp_doctor_issued(&call) == 0);
    CHECK(ddp_doctor_step() == 0);
    CHECK(DDP_DOCTOR_HERE == 0);
    ddp_doctor_returned(1);
    ddp_doctor_setting(text("x"), text("y"));
    ddp_doctor_memory(NULL);
    ddp_doctor_parameters(NULL);
    ddp_doctor_close();
}

/* Runs when the thread's Rust thread-local data may already be destroyed. */
static void at_thread_end(void *group)
{
    ddp_doctor_call call = {.op = 5, .group = *(uint32_t *)group};
    CHECK(ddp_doctor_issued(&call) != 0);
}

static pthread_key_t key;

static void *in_thread(void *group)
{
    pthread_setspecific(key, group);
    return NULL;
}

int main(void)
{
    ddp_doctor_identity identity = {1, 2, -1};
    ddp_doctor_identity world = {1, 4, 0};
    ddp_doctor_text no_text = {NULL, 7};
    ddp_doctor_text empty = {NULL, 0};
    uint32_t members[2] = {1, 3};
    int64_t sizes[3] = {4, -1, (int64_t)1 << 40};
    int status;

    CHECK(ddp_doctor_abi_version() == DDP_DOCTOR_ABI_VERSION);
    CHECK(strlen(ddp_doctor_version()) >= 5);
    CHECK(text(NULL).length == 0);
    nothing_happens();
    CHECK(ddp_doctor_open(text("c"), NULL) == DDP_DOCTOR_BAD_ARGUMENT);
    ddp_doctor_options options;
    memset(&options, 0, sizeof options);
    CHECK(ddp_doctor_open_with(NULL) == DDP_DOCTOR_BAD_ARGUMENT);
    CHECK(ddp_doctor_open_with(&options) == DDP_DOCTOR_BAD_ARGUMENT);
    options.size = sizeof options;
    options.job = no_text;
    CHECK(ddp_doctor_open_with(&options) == DDP_DOCTOR_BAD_ARGUMENT);
    CHECK(!ddp_doctor_is_open());
    options.job = text("my job");
    options.identity = identity;
    options.attempt_plus_1 = 3;
    CHECK(ddp_doctor_open(no_text, &identity) == DDP_DOCTOR_BAD_ARGUMENT);
    setenv("DDP_DOCTOR", "0", 1);
    CHECK(ddp_doctor_open(text("c"), &identity) == DDP_DOCTOR_DISABLED);
    unsetenv("DDP_DOCTOR");
    CHECK(ddp_doctor_open_with(&options) == DDP_DOCTOR_OK);
    CHECK(ddp_doctor_open(text("c"), &identity) == DDP_DOCTOR_ALREADY_OPEN);
    CHECK(ddp_doctor_is_open() == 1);
    ddp_doctor_set_identity(&world);

    uint32_t group = ddp_doctor_group(text("pair"), empty, text("gloo"), 0, members, 2);
    uint32_t site = ddp_doctor_site(text("program.c"), text("main"), 7);
    CHECK(group != 0 && site != 0);
    CHECK(ddp_doctor_group(text("bad"), empty, empty, 0, NULL, 2) == 0);
    ddp_doctor_creation creation = {
        .op = 33, .epoch = 2, .name = text("new"), .description = empty, .backend = text("gloo"),
        .members = members, .member_count = 2, .site = site, .takes_all = 1,
    };
    CHECK(sizeof creation == 80 && offsetof(ddp_doctor_creation, members) == 56);

    ddp_doctor_call call = {
        .op = 1, .dtype = 1, .reduce_op = 1, .ndim = 1, .tensors = 1, .numel = 8, .dims = {8},
        .flags = DDP_DOCTOR_NUMEL | DDP_DOCTOR_SHAPE | DDP_DOCTOR_P2P,
        .group = group, .site = site,
    };
    CHECK(ddp_doctor_step() == 1);
    uint32_t phase = ddp_doctor_string(text("checkpoint"));
    ddp_doctor_phase_begin(phase);
    uint64_t id = ddp_doctor_issued(&call);
    CHECK(id == 1);
    ddp_doctor_returned(id);
    ddp_doctor_phase_end(phase);
    ddp_doctor_wait_begin(id, site);
    ddp_doctor_wait_end(id);
    ddp_doctor_completed(id);
    ddp_doctor_unawaited(id, site);

    call.op = 4;
    id = ddp_doctor_issued_at(&call, group, site);
    CHECK(id == 2);
    ddp_doctor_splits(id, 0, sizes, 3);
    ddp_doctor_splits(id, 0, NULL, 3);
    ddp_doctor_returned(id);

    /* Invalid arguments do no harm. */
    memset(&call, 0xff, sizeof call);
    CHECK(ddp_doctor_issued(&call) == 3);
    CHECK(ddp_doctor_issued(NULL) == 0);
    ddp_doctor_returned(UINT64_MAX);
    ddp_doctor_wait_begin(0, UINT32_MAX);
    ddp_doctor_wait_end(0);
    ddp_doctor_group_destroyed(UINT32_MAX);
    ddp_doctor_group_timeout(UINT32_MAX, 1);
    ddp_doctor_group_timeout(group, UINT64_MAX);
    ddp_doctor_exception(-1, text("E\xff: x"), site);
    ddp_doctor_exception(4, no_text, site);
    ddp_doctor_note(1, text("remark"));
    ddp_doctor_last_input(12, site);
    ddp_doctor_input_ended(site);
    ddp_doctor_spent(DDP_DOCTOR_SPENT_INPUT, 5000000, site);
    ddp_doctor_setting(text("nccl"), text("2.27=3"));
    ddp_doctor_setting(no_text, text("x"));

    ddp_doctor_memory_sample memory = {
        sizeof memory, 3, 1000, DDP_DOCTOR_UNKNOWN, 600, (uint64_t)1 << 40, 700, DDP_DOCTOR_UNKNOWN, 2, 0, 9,
    };
    ddp_doctor_memory(&memory);
    memory.size = offsetof(ddp_doctor_memory_sample, allocated);
    ddp_doctor_memory(&memory);
    memory.size = 3;
    ddp_doctor_memory(&memory);
    ddp_doctor_memory(NULL);

    ddp_doctor_parameter_list parameters = {
        sizeof parameters, DDP_DOCTOR_PARAMETERS_LAYOUT, group, 1, 0, 2, text("float32 8,4 a\nint8 - b\n"), 0,
        DDP_DOCTOR_DTYPE_FLOAT32, {7, 8, 9}, 2,
    };
    ddp_doctor_parameters(&parameters);
    parameters.size = 3;
    ddp_doctor_parameters(&parameters);
    ddp_doctor_parameters(NULL);

    /* A line has one number, however often it is executed. */
    uint32_t here[3];
    for (int i = 0; i < 3; ++i)
        here[i] = DDP_DOCTOR_HERE; /* THE LINE */
    CHECK(here[0] != 0 && here[0] == here[1] && here[1] == here[2]);
    CHECK(DDP_DOCTOR_HERE != here[0]);
    CHECK(ddp_doctor_here(NULL, NULL, 1) == 0);
    CHECK(ddp_doctor_here("nowhere.c", NULL, 1u << 30) != 0);
    ddp_doctor_input_ended(here[0]);

    pthread_t thread;
    CHECK(pthread_key_create(&key, at_thread_end) == 0);
    CHECK(pthread_create(&thread, NULL, in_thread, &group) == 0);
    CHECK(pthread_join(thread, NULL) == 0);

    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        nothing_happens();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    uint64_t making = ddp_doctor_creating(&creation);
    CHECK(making != 0 && ddp_doctor_creating(NULL) == 0);
    ddp_doctor_returned(making);
    ddp_doctor_group_destroyed(group);
    ddp_doctor_exit(0, text("main returned"));
    ddp_doctor_close();
    nothing_happens();
    return 0;
}
