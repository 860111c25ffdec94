/* The main program of a model: inputs from .npy files, outputs to .npy files, or how long a run takes. */

#include "ingot_program.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *output_folder;
    double benchmark_seconds;
    int threads;
    const char **paths; /* of the inputs */
} choices;

static void print_help(const ingot_program *program) {
    printf("usage: %s", program->name);
    for (int n = 0; n < program->input_count; n++) printf(" --input %s=FILE.npy", program->inputs[n].name);
    printf(" [--output-dir DIR] [--threads N] [--benchmark SECONDS]\n\ninputs:\n");
    for (int n = 0; n < program->input_count; n++)
        printf("  %s: %s\n", program->inputs[n].name, program->inputs[n].type);
    printf("outputs:\n");
    for (int n = 0; n < program->output_count; n++)
        printf("  %s: %s\n", program->outputs[n].name, program->outputs[n].type);
}

static void take_input(const ingot_program *program, choices *chosen, const char *argument) {
    for (int n = 0; n < program->input_count; n++) {
        const char *path = named_value(argument, program->inputs[n].name);
        if (path) {
            chosen->paths[n] = path;
            return;
        }
    }
    fail("--input %s: write name=file.npy with the name of an input; see --help", argument);
}

static choices parse(const ingot_program *program, int count, char **arguments) {
    choices chosen = {NULL, 0.0, 0, calloc((size_t)program->input_count + 1, sizeof(char *))};
    for (int n = 1; n < count; n++) {
        const char *option = arguments[n];
        if (strcmp(option, "--help") == 0) {
            print_help(program);
            exit(0);
        } else if (strcmp(option, "--input") == 0) {
            take_input(program, &chosen, next_argument(count, arguments, &n));
        } else if (strcmp(option, "--output-dir") == 0) {
            chosen.output_folder = next_argument(count, arguments, &n);
        } else if (strcmp(option, "--threads") == 0) {
            chosen.threads = (int)integer_argument(option, next_argument(count, arguments, &n), 1);
        } else if (strcmp(option, "--benchmark") == 0) {
            chosen.benchmark_seconds = atof(next_argument(count, arguments, &n));
            if (!(chosen.benchmark_seconds > 0)) fail("--benchmark takes a number of seconds");
        } else {
            fail("there is no option %s; see --help", option);
        }
    }
    for (int n = 0; n < program->input_count; n++)
        if (!chosen.paths[n])
            fail("input %s (%s) is missing: --input %s=FILE.npy", program->inputs[n].name, program->inputs[n].type,
                 program->inputs[n].name);
    return chosen;
}

static int compare(const void *first, const void *second) {
    double a = *(const double *)first, b = *(const double *)second;
    return (a > b) - (a < b);
}

static void benchmark(call_frame *frame, double seconds) {
    enum { MOST = 1 << 20 };
    double *times = allocate((int64_t)sizeof(double) * MOST);
    int count = 0;
    run_frame(frame);
    for (double stop = seconds_now() + seconds; count < MOST && (count < 3 || seconds_now() < stop); count++) {
        double start = seconds_now();
        run_frame(frame);
        times[count] = seconds_now() - start;
    }
    qsort(times, (size_t)count, sizeof(double), compare);
    printf("best %.6f ms, median %.6f ms, %d runs\n", 1e3 * times[0], 1e3 * times[count / 2], count);
    free(times);
}

int main(int count, char **arguments) {
    const ingot_program *program = &ingot_description;
    choices chosen = parse(program, count, arguments);
    call_frame frame = new_frame(program, chosen.threads ? chosen.threads : thread_limit());
    array_file *arrays = calloc((size_t)program->input_count + 1, sizeof(array_file));
    const int64_t **shapes = calloc((size_t)program->input_count + 1, sizeof(int64_t *));
    for (int n = 0; n < program->input_count; n++) {
        arrays[n] = map_array(chosen.paths[n], &program->inputs[n]);
        shapes[n] = arrays[n].shape;
        frame.inputs[n] = (void *)(uintptr_t)arrays[n].data;
    }
    bind_shapes(&frame, shapes);
    if (chosen.benchmark_seconds > 0) {
        benchmark(&frame, chosen.benchmark_seconds);
        return 0;
    }
    run_frame(&frame);
    for (int n = 0; n < program->output_count; n++) {
        print_array(&program->outputs[n], output_shape(&frame, n), frame.outputs[n]);
        if (chosen.output_folder)
            write_array(chosen.output_folder, &program->outputs[n], output_shape(&frame, n), frame.outputs[n]);
    }
    return 0;
}
