// Uses a file often enough for it to be mapped, and makes a child: the first process where its parent has another namespace for its children.
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words)
{
    int file = count == 2 ? open(words[1], O_RDWR) : -1, status = -1;
    char byte;
    for (int use = 0; use < 100; use++)
        if (pread(file, &byte, 1, use) != 1 || byte != 'a')
            return 1;
    pid_t child = fork();
    if (child < 0)
        return 2;
    if (child == 0)
        _exit(getpid() == 1 ? 0 : 3);
    if (waitpid(child, &status, 0) != child || status != 0)
        return 4;
    puts("= done");
    return 0;
}
