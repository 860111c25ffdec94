/* A compiled program as the main programs see it: tables written by the compiler beside the machine code.
   Extents that depend on dims are -1 in the tables; the program itself computes them (`shapes`). */

#ifndef INGOT_PROGRAM_H
#define INGOT_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#define INGOT_ALIGNMENT 64

typedef struct {
    const char *name;    /* as in manifests: f32 */
    const char *npy;     /* type codes of .npy files that fit, separated by blanks; the first one is written */
    const char *tensors; /* as safetensors spells it: F32 */
    int64_t bytes;       /* of an element */
} ingot_dtype;

typedef struct {
    const char *name;
    const char *file; /* the name as part of a file's name */
    const char *type; /* for people: f32[batch, 10] */
    const ingot_dtype *dtype;
    int rank;
    const int64_t *extents;
    int state;           /* outputs: the state that is updated in place, or -1 */
    const void *initial; /* states: the first value */
} ingot_tensor;

typedef struct {
    const char *name;
    int64_t lower, upper; /* upper -1: no bound */
    int input, axis;      /* where its value comes from */
} ingot_dim;

typedef struct {
    const char *name;
    const ingot_tensor *inputs, *states, *outputs;
    int input_count, state_count, output_count;
    const ingot_dim *dims;
    int dim_count;
    int extent_count;               /* of inputs, states and outputs together */
    const char *const *flags;       /* processor flags that the code needs, as Linux spells them; ends with NULL */
    const char *processor;          /* what it was compiled for */
    const char *checkpoint_tensors; /* the checkpoint's table of tensors: `"a":{...},"b":{...}}` */
    const int *checkpoint_order;    /* states in the order of that table */
    const char *model;              /* class name, for checkpoints, quoted as JSON */
    int (*call)(void *const *inputs, void *const *states, void *const *outputs, const int64_t *dims, void *arena,
                void *pool);
    int64_t (*arena_bytes)(const int64_t *dims);
    void (*shapes)(const int64_t *dims, int64_t *extents);
    void *(*pool_create)(int32_t threads);
    const char *(*error)(void);
} ingot_program;

extern const ingot_program ingot_description;

/* support.c */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
void *allocate(int64_t bytes);
const char *named_value(const char *argument, const char *name);
int64_t integer_argument(const char *option, const char *text, int64_t lower);
const char *next_argument(int count, char **arguments, int *position);
int thread_limit(void);
void check_processor(const ingot_program *program);
double seconds_now(void);

typedef struct {
    const ingot_program *program;
    void *pool, *arena;
    int64_t arena_bytes;
    int64_t *dims, *extents; /* extents: of every input, state and output, one after another */
    void **inputs, **states, **outputs;
} call_frame;

call_frame new_frame(const ingot_program *program, int threads);
void bind_shapes(call_frame *frame, const int64_t *const *input_shapes);
const int64_t *output_shape(const call_frame *frame, int output);
int64_t element_count(const int64_t *shape, int rank);
void run_frame(call_frame *frame);

/* arrays.c */
typedef struct {
    int rank;
    int64_t shape[32];
    const unsigned char *data;
} array_file;

array_file map_array(const char *path, const ingot_tensor *tensor);
void write_array(const char *folder, const ingot_tensor *tensor, const int64_t *shape, const void *data);
void print_array(const ingot_tensor *tensor, const int64_t *shape, const void *data);
double number_at(const ingot_dtype *dtype, const void *data, int64_t index);

/* order.c */
typedef struct {
    uint64_t state_high, state_low, increment_high, increment_low;
    uint32_t kept;
    int has_kept;
} number_generator;

number_generator seeded_generator(uint64_t seed);
void next_permutation(number_generator *generator, uint32_t *order, uint32_t count);

/* checkpoint.c */
typedef struct {
    int64_t position; /* batches taken from the data; -1: the file does not say */
    int64_t seed, batch, examples;
} data_position;

void write_checkpoint(const call_frame *frame, const char *path, const data_position *position);
data_position read_checkpoint(call_frame *frame, const char *path);

#endif
