/* texts.c - texts between Fortran, where they end with blanks, and C. */
#include "fortran.h"

#include <stdlib.h>
#include <string.h>

char *fortran_text(const char *text, int length) {
    int first = 0, end = length;
    while (first < length && text[first] == ' ') first++;
    while (end > first && text[end - 1] == ' ') end--;
    char *own = strndup(text + first, (size_t)(end - first));
    if (own == NULL) abort();
    return own;
}

void fortran_text_put(char *text, int length, const char *c) {
    size_t n = strnlen(c, (size_t)length);
    memcpy(text, c, n);
    memset(text + n, ' ', (size_t)length - n);
}

char **fortran_texts(const char *texts, int count, int length, ptrdiff_t advance) {
    char **own = NULL;
    for (int n = 0;; n++) {
        own = realloc(own, ((size_t)n + 1) * sizeof *own);
        if (own == NULL) abort();
        own[n] = n != count ? fortran_text(texts + n * advance, length) : NULL;
        if (own[n] == NULL) return own;
        if (count < 0 && own[n][0] == 0) {
            free(own[n]);
            own[n] = NULL;
            return own;
        }
    }
}

void fortran_texts_free(char **texts) {
    for (char **text = texts; text != NULL && *text != NULL; text++) free(*text);
    free(texts);
}
