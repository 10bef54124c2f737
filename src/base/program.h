/* Where an installed box keeps its parts, found from the running program itself. */
#pragma once

#include <stddef.h>

/*
 * Makes the process what all of box counts on, whatever its caller left it: descriptors 0, 1 and 2
 * are taken (a closed one fails as before, but no file of ours can get its number), and children
 * that end are waited for. First in main.
 */
void program_begin(void);

/*
 * The path of a file below PREFIX, where the running program is PREFIX/bin/NAME or
 * PREFIX/libexec/box/NAME. Returns 0, -ENAMETOOLONG, or a negative errno of readlink(2).
 */
int program_prefix_path(const char *relative, char *ret_path, size_t size);

/* PREFIX/libexec/box/name: box-keeper, box-image, box-guest, tiny.tar. */
int program_path(const char *name, char *ret_path, size_t size);

/* PREFIX/share/box/name: examples. */
int program_share_path(const char *name, char *ret_path, size_t size);
