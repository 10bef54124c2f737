/*
 * Prints the addresses of names, one line each, as getaddrinfo(3) of the C library gives them; or
 * its error. Built with musl, whose resolver is another one than glibc's: it asks for both kinds of
 * address from one socket, all servers at once, and gives up search domains at a failure.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static void print_address(const struct addrinfo *info)
{
	char text[NI_MAXHOST];

	if (getnameinfo(info->ai_addr, info->ai_addrlen, text, sizeof(text), NULL, 0,
			NI_NUMERICHOST) == 0) {
		printf(" %s", text);
	}
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
		struct addrinfo *found = NULL;
		int rc = getaddrinfo(argv[i], NULL, &hints, &found);

		printf("%s", argv[i]);
		if (rc != 0) {
			printf(" %s", rc == EAI_NONAME ? "no name" : gai_strerror(rc));
		}
		for (const struct addrinfo *at = found; rc == 0 && at; at = at->ai_next) {
			print_address(at);
		}
		printf("\n");
		if (rc == 0) {
			freeaddrinfo(found);
		}
	}
	return 0;
}
