/* replay FILE...: each file once through the fuzzer's target, without libFuzzer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
            perror(argv[i]);
            return 2;
        }
        long bytes = ftell(file);
        rewind(file);
        uint8_t *data = malloc(bytes > 0 ? (size_t)bytes : 1); /* exactly: ASan sees its end */
        if (data == NULL || fread(data, 1, (size_t)bytes, file) != (size_t)bytes) {
            perror(argv[i]);
            return 2;
        }
        fclose(file);
        printf("%s\n", argv[i]);
        fflush(stdout);
        LLVMFuzzerTestOneInput(data, (size_t)bytes);
        free(data);
    }
    return 0;
}
