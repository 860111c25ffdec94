/* Checkpoints: safetensors files with the tensors of ingot.Trainer.save, and where in the data training stands.

   Written to a file beside the old one, flushed to the disk, then renamed: whoever is killed at any moment leaves a
   whole checkpoint, the old one or the new one. Read in two rounds: everything is checked before anything changes. */

#include "ingot_program.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FORMAT "ingot.checkpoint.1"

static int64_t state_bytes(const ingot_tensor *state) {
    return element_count(state->extents, state->rank) * state->dtype->bytes;
}

/* --- writing ---------------------------------------------------------------------------------------- */

static void flush_folder_of(const char *path) {
    char folder[4096] = ".";
    const char *slash = strrchr(path, '/');
    if (slash) snprintf(folder, sizeof folder, "%.*s", (int)(slash - path) + 1, path);
    int descriptor = open(folder, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    fsync(descriptor); /* some file systems cannot; the file itself is safe */
    close(descriptor);
}

static int write_contents(FILE *file, const call_frame *frame, const data_position *position) {
    const ingot_program *program = frame->program;
    int64_t room = (int64_t)strlen(program->checkpoint_tensors) + (int64_t)strlen(program->model) + 512;
    char *header = allocate(room);
    int length = snprintf(header, (size_t)room,
                          "{\"__metadata__\":{\"format\":\"" FORMAT "\",\"model\":%s,\"position\":\"%" PRId64
                          "\",\"seed\":\"%" PRId64 "\",\"batch\":\"%" PRId64 "\",\"examples\":\"%" PRId64 "\"},%s",
                          program->model, position->position, position->seed, position->batch, position->examples,
                          program->checkpoint_tensors);
    while (length % 8) header[length++] = ' ';
    unsigned char size[8];
    for (int n = 0; n < 8; n++) size[n] = (unsigned char)((uint64_t)length >> 8 * n);
    int is_good = fwrite(size, 1, 8, file) == 8 && fwrite(header, 1, (size_t)length, file) == (size_t)length;
    for (int n = 0; is_good && n < program->state_count; n++) {
        int state = program->checkpoint_order[n];
        size_t bytes = (size_t)state_bytes(&program->states[state]);
        is_good = fwrite(frame->states[state], 1, bytes, file) == bytes;
    }
    free(header);
    return is_good;
}

void write_checkpoint(const call_frame *frame, const char *path, const data_position *position) {
    char temporary[4096];
    if (snprintf(temporary, sizeof temporary, "%s.new", path) >= (int)sizeof temporary) fail("%s: too long", path);
    FILE *file = fopen(temporary, "wb");
    if (!file) fail("%s cannot be written: %s", temporary, strerror(errno));
    int is_good = write_contents(file, frame, position) && fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (fclose(file) != 0 || !is_good || rename(temporary, path) != 0) {
        int why = errno;
        unlink(temporary);
        fail("%s cannot be written: %s", path, strerror(why));
    }
    flush_folder_of(path);
}

/* --- reading ---------------------------------------------------------------------------------------- */

/* The JSON that safetensors uses: objects, arrays, strings and integers, read in place. */
typedef struct {
    const char *path, *at, *end;
} reader;

static void damaged(const reader *json) { fail("%s is no checkpoint, or a damaged one", json->path); }

static char peek(reader *json) {
    while (json->at < json->end && strchr(" \t\r\n", *json->at)) json->at++;
    if (json->at >= json->end) damaged(json);
    return *json->at;
}

static int accept(reader *json, char wanted) {
    if (peek(json) != wanted) return 0;
    json->at++;
    return 1;
}

static void expect(reader *json, char wanted) {
    if (!accept(json, wanted)) damaged(json);
}

static int64_t read_integer(reader *json) {
    int64_t value = 0;
    const char *start = (peek(json), json->at);
    for (; json->at < json->end && *json->at >= '0' && *json->at <= '9'; json->at++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *json->at - '0', &value))
            damaged(json);
    if (json->at == start) damaged(json);
    return value;
}

static unsigned read_code(reader *json) {
    unsigned code = 0;
    if (json->end - json->at < 4) damaged(json);
    for (int n = 0; n < 4; n++) {
        const char *digits = "0123456789abcdef", *found = memchr(digits, *json->at++ | 32, 16);
        if (!found) damaged(json);
        code = code * 16 + (unsigned)(found - digits);
    }
    return code;
}

static int append_code(char *text, unsigned code) {
    if (code < 0x80) return text[0] = (char)code, 1;
    if (code < 0x800) return text[0] = (char)(0xc0 | code >> 6), text[1] = (char)(0x80 | (code & 63)), 2;
    int wide = code >= 0x10000;
    if (wide) text[0] = (char)(0xf0 | code >> 18), text[1] = (char)(0x80 | (code >> 12 & 63));
    else text[0] = (char)(0xe0 | code >> 12);
    text[1 + wide] = (char)(0x80 | (code >> 6 & 63));
    text[2 + wide] = (char)(0x80 | (code & 63));
    return 3 + wide;
}

static int read_escape(reader *json, char *text) {
    static const char escapes[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    char escape = json->at < json->end ? *json->at++ : '\0';
    if (escape == 'u') {
        unsigned code = read_code(json);
        if (code >= 0xd800 && code < 0xdc00 && json->end - json->at > 6 && json->at[0] == '\\' && json->at[1] == 'u') {
            json->at += 2;
            code = 0x10000 + ((code - 0xd800) << 10) + (read_code(json) - 0xdc00);
        }
        return append_code(text, code);
    }
    for (const char *at = escapes; *at; at += 2)
        if (*at == escape) return *text = at[1], 1;
    damaged(json);
    return 0;
}

/* A string as UTF-8; never longer than it is in the file. */
static void read_string(reader *json, char *text, size_t room) {
    size_t length = 0;
    expect(json, '"');
    for (;;) {
        if (json->at >= json->end || length + 5 > room) damaged(json);
        char next = *json->at++;
        if (next == '"') break;
        if (next == '\\') length += (size_t)read_escape(json, text + length);
        else text[length++] = next;
    }
    text[length] = '\0';
}

typedef struct {
    char dtype[16];
    int rank;
    int64_t shape[32], begin, end;
} entry;

static entry read_entry(reader *json) {
    entry found = {.begin = -1, .end = -1};
    char key[64];
    expect(json, '{');
    do {
        read_string(json, key, sizeof key);
        expect(json, ':');
        if (strcmp(key, "dtype") == 0) {
            read_string(json, found.dtype, sizeof found.dtype);
        } else if (strcmp(key, "shape") == 0) {
            expect(json, '[');
            while (!accept(json, ']')) {
                if (found.rank == 32) damaged(json);
                found.shape[found.rank++] = read_integer(json);
                if (peek(json) != ']') expect(json, ',');
            }
        } else if (strcmp(key, "data_offsets") == 0) {
            expect(json, '[');
            found.begin = read_integer(json);
            expect(json, ',');
            found.end = read_integer(json);
            expect(json, ']');
        } else {
            damaged(json);
        }
    } while (accept(json, ','));
    expect(json, '}');
    return found;
}

static void read_metadata(reader *json, data_position *position) {
    char key[256], value[1024];
    expect(json, '{');
    if (accept(json, '}')) return;
    do {
        read_string(json, key, sizeof key);
        expect(json, ':');
        read_string(json, value, sizeof value);
        int64_t *target = strcmp(key, "position") == 0 ? &position->position
                        : strcmp(key, "seed") == 0     ? &position->seed
                        : strcmp(key, "batch") == 0    ? &position->batch
                        : strcmp(key, "examples") == 0 ? &position->examples
                                                       : NULL;
        if (target) *target = strtoll(value, NULL, 10);
    } while (accept(json, ','));
    expect(json, '}');
}

static int find_state(const ingot_program *program, const char *name) {
    for (int n = 0; n < program->state_count; n++)
        if (strcmp(program->states[n].name, name) == 0) return n;
    return -1;
}

static int64_t checked_offset(const reader *json, const ingot_tensor *state, const entry *found, int64_t data_bytes) {
    int fits = strcmp(found->dtype, state->dtype->tensors) == 0 && found->rank == state->rank;
    for (int axis = 0; fits && axis < state->rank; axis++) fits = found->shape[axis] == state->extents[axis];
    if (!fits) fail("%s does not fit: its %s is not %s", json->path, state->name, state->type);
    if (found->begin < 0 || found->end > data_bytes || found->end - found->begin != state_bytes(state)) damaged(json);
    return found->begin;
}

static char *read_whole(const char *path, int64_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) fail("%s cannot be read: %s", path, strerror(errno));
    *bytes = ftell(file);
    rewind(file);
    char *data = allocate(*bytes + 1);
    if (fread(data, 1, (size_t)*bytes, file) != (size_t)*bytes) fail("%s cannot be read", path);
    fclose(file);
    return data;
}

data_position read_checkpoint(call_frame *frame, const char *path) {
    const ingot_program *program = frame->program;
    data_position position = {-1, -1, -1, -1};
    int64_t bytes, length = 0, *offsets = allocate((int64_t)sizeof(int64_t) * (program->state_count + 1));
    char *file = read_whole(path, &bytes), name[4096];
    for (int n = 0; n < program->state_count; n++) offsets[n] = -1;
    for (int n = 7; n >= 0 && bytes >= 8; n--) length = (int64_t)((uint64_t)length << 8 | (unsigned char)file[n]);
    reader json = {path, file + 8, file + 8 + length};
    if (bytes < 8 || length < 2 || length > bytes - 8) damaged(&json);
    expect(&json, '{');
    do {
        read_string(&json, name, sizeof name);
        expect(&json, ':');
        if (strcmp(name, "__metadata__") == 0) {
            read_metadata(&json, &position);
            continue;
        }
        entry found = read_entry(&json);
        int state = find_state(program, name);
        if (state < 0) fail("%s has a tensor %s, which this program has not", path, name);
        offsets[state] = checked_offset(&json, &program->states[state], &found, bytes - 8 - length);
    } while (accept(&json, ','));
    expect(&json, '}');
    for (int n = 0; n < program->state_count; n++)
        if (offsets[n] < 0) fail("%s has no tensor %s", path, program->states[n].name);
    for (int n = 0; n < program->state_count; n++)
        memcpy(frame->states[n], file + 8 + length + offsets[n], (size_t)state_bytes(&program->states[n]));
    free(offsets);
    free(file);
    return position;
}
