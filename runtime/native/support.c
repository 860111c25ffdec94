/* What both main programs need: messages, command line, threads, processor check, dims, the call itself. */

#include "ingot_program.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void fail(const char *format, ...) {
    va_list arguments;
    fflush(stdout);
    fprintf(stderr, "%s: ", ingot_description.name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

void *allocate(int64_t bytes) {
    void *memory = NULL;
    size_t size = bytes > 0 ? (size_t)bytes : 1;
    if (bytes < 0 || posix_memalign(&memory, INGOT_ALIGNMENT, size) != 0) fail("no room for %" PRId64 " bytes", bytes);
    return memory;
}

/* Of `x=file` the part after `x=` when the name is x, else NULL. */
const char *named_value(const char *argument, const char *name) {
    size_t length = strlen(name);
    return strncmp(argument, name, length) == 0 && argument[length] == '=' ? argument + length + 1 : NULL;
}

int64_t integer_argument(const char *option, const char *text, int64_t lower) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < lower)
        fail("%s takes an integer of at least %" PRId64 ", not '%s'", option, lower, text);
    return value;
}

const char *next_argument(int count, char **arguments, int *position) {
    if (*position + 1 >= count) fail("%s needs a value; see --help", arguments[*position]);
    return arguments[++*position];
}

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* --- threads and processor ----------------------------------------------------------------------- */

static int64_t number_in(const char *path, int64_t *second) {
    char text[64] = "";
    long long first = -1, other = -1;
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    if (fgets(text, sizeof text, file)) sscanf(text, "%lld %lld", &first, &other); /* "max" stays -1 */
    fclose(file);
    if (second) *second = other;
    return first;
}

static int rounded_up(int64_t quota, int64_t period) {
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : -1;
}

/* Processors this process may run on, less where the container's quota or INGOT_THREADS is less. */
int thread_limit(void) {
    cpu_set_t allowed;
    int limit = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
    int64_t period = -1;
    int64_t quota = number_in("/sys/fs/cgroup/cpu.max", &period);
    int found = rounded_up(quota, period);
    if (found > 0 && found < limit) limit = found;
    found = rounded_up(number_in("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", NULL),
                       number_in("/sys/fs/cgroup/cpu/cpu.cfs_period_us", NULL));
    if (found > 0 && found < limit) limit = found;
    const char *request = getenv("INGOT_THREADS");
    if (request && *request) {
        int64_t wanted = integer_argument("INGOT_THREADS", request, 1);
        if (wanted < limit) limit = (int)wanted;
    }
    return limit < 1 ? 1 : limit;
}

static int has_word(const char *line, const char *word) {
    size_t length = strlen(word);
    for (const char *at = line; (at = strstr(at, word)) != NULL; at += length) {
        int begins = at == line || isspace((unsigned char)at[-1]) || at[-1] == ':';
        if (begins && (at[length] == '\0' || isspace((unsigned char)at[length]))) return 1;
    }
    return 0;
}

/* Say which instructions are missing instead of dying from an illegal one. Without /proc nothing is known. */
void check_processor(const ingot_program *program) {
    char line[16384];
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "flags", 5) != 0 && strncmp(line, "Features", 8) != 0) continue;
        for (const char *const *flag = program->flags; *flag; flag++)
            if (!has_word(line, *flag))
                fail("built for %s; this processor lacks %s. Build it with target=\"x86-64-v3\" or an older one",
                     program->processor, *flag);
        break;
    }
    fclose(file);
}

/* --- calls ---------------------------------------------------------------------------------------- */

call_frame new_frame(const ingot_program *program, int threads) {
    call_frame frame = {0};
    check_processor(program);
    frame.program = program;
    frame.pool = threads > 1 ? program->pool_create(threads) : NULL;
    frame.dims = allocate((int64_t)sizeof(int64_t) * (program->dim_count + 1));
    frame.extents = allocate((int64_t)sizeof(int64_t) * (program->extent_count + 1));
    frame.inputs = allocate((int64_t)sizeof(void *) * (program->input_count + 1));
    frame.states = allocate((int64_t)sizeof(void *) * (program->state_count + 1));
    frame.outputs = allocate((int64_t)sizeof(void *) * (program->output_count + 1));
    for (int n = 0; n < program->output_count; n++) frame.outputs[n] = NULL;
    for (int n = 0; n < program->state_count; n++) {
        const ingot_tensor *state = &program->states[n];
        int64_t bytes = element_count(state->extents, state->rank) * state->dtype->bytes;
        frame.states[n] = allocate(bytes);
        memcpy(frame.states[n], state->initial, (size_t)bytes);
    }
    return frame;
}

int64_t element_count(const int64_t *shape, int rank) {
    int64_t count = 1;
    for (int axis = 0; axis < rank; axis++) count *= shape[axis];
    return count;
}

static void bind_dims(call_frame *frame, const int64_t *const *input_shapes) {
    const ingot_program *program = frame->program;
    for (int n = 0; n < program->dim_count; n++) {
        const ingot_dim *dim = &program->dims[n];
        int64_t value = input_shapes[dim->input][dim->axis];
        if (value < dim->lower || (dim->upper >= 0 && value > dim->upper))
            fail("%s is %" PRId64 ", outside the bounds that the program was compiled for: at least %" PRId64
                 ", at most %" PRId64 " (-1: any)", dim->name, value, dim->lower, dim->upper);
        frame->dims[n] = value;
    }
}

/* Dims from the shapes of the inputs, all other extents from the dims; memory for outputs and scratch. */
void bind_shapes(call_frame *frame, const int64_t *const *input_shapes) {
    const ingot_program *program = frame->program;
    bind_dims(frame, input_shapes);
    program->shapes(frame->dims, frame->extents);
    const int64_t *extents = frame->extents;
    for (int n = 0; n < program->input_count; n++) {
        const ingot_tensor *input = &program->inputs[n];
        for (int axis = 0; axis < input->rank; axis++)
            if (extents[axis] != input_shapes[n][axis])
                fail("axis %d of %s (%s) has %" PRId64 " elements, it should have %" PRId64, axis, input->name,
                     input->type, input_shapes[n][axis], extents[axis]);
        extents += input->rank;
    }
    for (int n = 0; n < program->output_count; n++) {
        const ingot_tensor *output = &program->outputs[n];
        if (output->state >= 0) {
            frame->outputs[n] = frame->states[output->state];
            continue;
        }
        free(frame->outputs[n]);
        frame->outputs[n] = allocate(element_count(output_shape(frame, n), output->rank) * output->dtype->bytes);
    }
    int64_t bytes = program->arena_bytes(frame->dims);
    if (bytes < 0) fail("these shapes need more scratch memory than there are addresses");
    if (!frame->arena || bytes > frame->arena_bytes) {
        free(frame->arena);
        frame->arena = allocate(bytes);
        frame->arena_bytes = bytes;
    }
}

const int64_t *output_shape(const call_frame *frame, int output) {
    const ingot_program *program = frame->program;
    const int64_t *extents = frame->extents;
    for (int n = 0; n < program->input_count; n++) extents += program->inputs[n].rank;
    for (int n = 0; n < program->state_count; n++) extents += program->states[n].rank;
    for (int n = 0; n < output; n++) extents += program->outputs[n].rank;
    return extents;
}

void run_frame(call_frame *frame) {
    const ingot_program *program = frame->program;
    if (program->call(frame->inputs, frame->states, frame->outputs, frame->dims, frame->arena, frame->pool))
        fail("%s", program->error());
}
