/* The main program of a trainer: mini-batches in the order of ingot.data.Batches, one compiled call for each, and
   checkpoints. Where training stands in the data is part of a checkpoint, so resuming is exact. */

#include "ingot_program.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char **paths; /* of the data */
    const char *output, *resume;
    int64_t epochs, batch, seed, steps, log, save;
    int threads, shuffle, drop_last;
} choices;

typedef struct {
    array_file *arrays;
    int64_t examples, per_epoch;
    uint32_t *order;
    int64_t epoch; /* whose order it is */
    number_generator generator;
} data_set;

static void print_help(const ingot_program *program) {
    printf("usage: %s", program->name);
    for (int n = 0; n < program->input_count; n++) printf(" --data %s=FILE.npy", program->inputs[n].name);
    printf(" [--output FILE] [--resume FILE]\n"
           "  --epochs N     passes over the data, those before a resumed checkpoint included (1)\n"
           "  --batch N      examples of a step (the compiled size, or 32)\n"
           "  --seed N       of the order of examples (0)\n"
           "  --no-shuffle   take the examples in their order\n"
           "  --drop-last    leave out a last batch that is smaller than the others\n"
           "  --steps N      stop after so many steps\n"
           "  --log N        print the loss every N steps (at the end of each epoch)\n"
           "  --save N       write the checkpoint every N steps (at the end of each epoch)\n"
           "  --threads N\n\ndata, one example after another along the first axis:\n");
    for (int n = 0; n < program->input_count; n++)
        printf("  %s: %s\n", program->inputs[n].name, program->inputs[n].type);
}

static void take_data(const ingot_program *program, choices *chosen, const char *argument) {
    for (int n = 0; n < program->input_count; n++) {
        const char *path = named_value(argument, program->inputs[n].name);
        if (path) {
            chosen->paths[n] = path;
            return;
        }
    }
    fail("--data %s: write name=file.npy with the name of an input; see --help", argument);
}

static void take_option(const ingot_program *program, choices *chosen, int count, char **arguments, int *n) {
    const struct {
        const char *name;
        int64_t *value;
        int64_t lower;
    } numbers[] = {{"--epochs", &chosen->epochs, 1}, {"--batch", &chosen->batch, 1}, {"--seed", &chosen->seed, 0},
                   {"--steps", &chosen->steps, 0},   {"--log", &chosen->log, 1},     {"--save", &chosen->save, 1}};
    const char *option = arguments[*n];
    for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++)
        if (strcmp(option, numbers[k].name) == 0) {
            *numbers[k].value = integer_argument(option, next_argument(count, arguments, n), numbers[k].lower);
            return;
        }
    if (strcmp(option, "--data") == 0) take_data(program, chosen, next_argument(count, arguments, n));
    else if (strcmp(option, "--output") == 0) chosen->output = next_argument(count, arguments, n);
    else if (strcmp(option, "--resume") == 0) chosen->resume = next_argument(count, arguments, n);
    else if (strcmp(option, "--threads") == 0)
        chosen->threads = (int)integer_argument(option, next_argument(count, arguments, n), 1);
    else if (strcmp(option, "--no-shuffle") == 0) chosen->shuffle = 0;
    else if (strcmp(option, "--drop-last") == 0) chosen->drop_last = 1;
    else fail("there is no option %s; see --help", option);
}

/* Examples of a step when the program was compiled for one size; -1 when for any. */
static int64_t compiled_batch(const ingot_program *program) {
    for (int n = 0; n < program->input_count; n++)
        if (program->inputs[n].extents[0] >= 0) return program->inputs[n].extents[0];
    return -1;
}

static choices parse(const ingot_program *program, int count, char **arguments) {
    choices chosen = {.epochs = 1, .batch = 0, .steps = INT64_MAX, .shuffle = 1};
    chosen.paths = calloc((size_t)program->input_count + 1, sizeof(char *));
    for (int n = 1; n < count; n++) {
        if (strcmp(arguments[n], "--help") == 0) {
            print_help(program);
            exit(0);
        }
        take_option(program, &chosen, count, arguments, &n);
    }
    for (int n = 0; n < program->input_count; n++)
        if (!chosen.paths[n])
            fail("%s (%s) is missing: --data %s=FILE.npy", program->inputs[n].name, program->inputs[n].type,
                 program->inputs[n].name);
    int64_t compiled = compiled_batch(program);
    if (!chosen.batch) chosen.batch = compiled > 0 ? compiled : 32;
    if (compiled >= 0 && chosen.batch != compiled)
        fail("this program was compiled for batches of %" PRId64 " examples", compiled);
    return chosen;
}

static data_set open_data(const ingot_program *program, const choices *chosen) {
    data_set data = {.arrays = calloc((size_t)program->input_count + 1, sizeof(array_file)), .epoch = -1};
    for (int n = 0; n < program->input_count; n++) {
        data.arrays[n] = map_array(chosen->paths[n], &program->inputs[n]);
        int64_t examples = data.arrays[n].shape[0];
        if (n > 0 && examples != data.examples)
            fail("%s has %" PRId64 " examples, %s has %" PRId64, chosen->paths[n], examples, chosen->paths[0],
                 data.examples);
        data.examples = examples;
    }
    if (data.examples >= UINT32_MAX) fail("more than 2^32 - 2 examples");
    data.per_epoch = data.examples / chosen->batch;
    if (data.examples % chosen->batch && !chosen->drop_last) {
        if (compiled_batch(program) >= 0)
            fail("%" PRId64 " examples are no whole number of batches of %" PRId64 "; say --drop-last", data.examples,
                 chosen->batch);
        data.per_epoch++;
    }
    if (data.per_epoch == 0) fail("there is not one batch of %" PRId64 " examples", chosen->batch);
    data.order = allocate((int64_t)sizeof(uint32_t) * data.examples);
    for (int64_t n = 0; n < data.examples; n++) data.order[n] = (uint32_t)n;
    data.generator = seeded_generator((uint64_t)chosen->seed);
    return data;
}

/* Gather the examples of a batch; how many they are. */
static int64_t gather(const call_frame *frame, data_set *data, const choices *chosen, int64_t position) {
    int64_t epoch = position / data->per_epoch, start = position % data->per_epoch * chosen->batch;
    for (; chosen->shuffle && data->epoch < epoch; data->epoch++)
        next_permutation(&data->generator, data->order, (uint32_t)data->examples);
    int64_t count = data->examples - start < chosen->batch ? data->examples - start : chosen->batch;
    for (int n = 0; n < frame->program->input_count; n++) {
        const array_file *array = &data->arrays[n];
        size_t bytes = (size_t)(element_count(array->shape + 1, array->rank - 1) *
                                frame->program->inputs[n].dtype->bytes);
        for (int64_t k = 0; k < count; k++)
            memcpy((char *)frame->inputs[n] + (size_t)k * bytes, array->data + data->order[start + k] * bytes, bytes);
    }
    return count;
}

static void bind_batch(call_frame *frame, const data_set *data, int64_t count) {
    int inputs = frame->program->input_count;
    int64_t(*shapes)[32] = allocate((int64_t)sizeof(int64_t[32]) * inputs);
    const int64_t **pointers = allocate((int64_t)sizeof(int64_t *) * inputs);
    for (int n = 0; n < inputs; n++) {
        memcpy(shapes[n], data->arrays[n].shape, sizeof shapes[n]);
        shapes[n][0] = count;
        pointers[n] = shapes[n];
    }
    bind_shapes(frame, pointers);
    free(shapes);
    free(pointers);
}

static int is_scalar(const call_frame *frame, int output) {
    const ingot_tensor *tensor = &frame->program->outputs[output];
    return tensor->state < 0 && element_count(output_shape(frame, output), tensor->rank) == 1;
}

static void print_step(const call_frame *frame, int64_t step, int64_t epoch, int64_t epochs) {
    printf("step %" PRId64 " epoch %" PRId64 "/%" PRId64, step, epoch, epochs);
    for (int n = 0; n < frame->program->output_count; n++) {
        const ingot_tensor *output = &frame->program->outputs[n];
        if (!is_scalar(frame, n)) continue;
        int digits = output->dtype->bytes == 8 ? 17 : 9; /* enough to read the same number back */
        printf(" %s %.*g", output->name, digits, number_at(output->dtype, frame->outputs[n], 0));
    }
    printf("\n");
    fflush(stdout);
}

static int64_t order_of(const choices *chosen) { return chosen->shuffle ? chosen->seed : -1; }

static void save(const call_frame *frame, const data_set *data, const choices *chosen, int64_t done) {
    data_position where = {done, order_of(chosen), chosen->batch, data->examples};
    if (chosen->output) write_checkpoint(frame, chosen->output, &where);
}

/* Steps done before this run. A checkpoint of Trainer.save does not say; its count of updates does. */
static int64_t resume_position(call_frame *frame, const data_set *data, const choices *chosen) {
    if (!chosen->resume) return 0;
    data_position found = read_checkpoint(frame, chosen->resume);
    if (found.position < 0) {
        for (int n = 0; n < frame->program->state_count; n++)
            if (strcmp(frame->program->states[n].name, "optimizer.count") == 0) return *(int64_t *)frame->states[n];
        fail("%s does not say how many steps were done", chosen->resume);
    }
    if (found.batch != chosen->batch || found.examples != data->examples || found.seed != order_of(chosen))
        fail("%s was made with seed %" PRId64 " (-1: no shuffle), batches of %" PRId64 " and %" PRId64
             " examples; resume with the same", chosen->resume, found.seed, found.batch, found.examples);
    return found.position;
}

int main(int count, char **arguments) {
    const ingot_program *program = &ingot_description;
    choices chosen = parse(program, count, arguments);
    data_set data = open_data(program, &chosen);
    call_frame frame = new_frame(program, chosen.threads ? chosen.threads : thread_limit());
    for (int n = 0; n < program->input_count; n++) {
        const array_file *array = &data.arrays[n];
        frame.inputs[n] = allocate(chosen.batch * element_count(array->shape + 1, array->rank - 1) *
                                   program->inputs[n].dtype->bytes);
    }
    int64_t begin = resume_position(&frame, &data, &chosen), total = chosen.epochs * data.per_epoch;
    int64_t end = total - begin < chosen.steps ? total : begin + chosen.steps, bound = -1;
    if (begin >= end) {
        printf("nothing to do: %" PRId64 " of %" PRId64 " steps are done\n", begin, total);
        save(&frame, &data, &chosen, begin);
    }
    for (int64_t position = begin; position < end; position++) {
        int64_t examples = gather(&frame, &data, &chosen, position), done = position + 1;
        if (examples != bound) bind_batch(&frame, &data, bound = examples);
        run_frame(&frame);
        int is_last = done == end || done % data.per_epoch == 0;
        if (chosen.log ? done % chosen.log == 0 : is_last)
            print_step(&frame, done, position / data.per_epoch + 1, chosen.epochs);
        if (done == end || (chosen.save ? done % chosen.save == 0 : is_last)) save(&frame, &data, &chosen, done);
    }
    return 0;
}
