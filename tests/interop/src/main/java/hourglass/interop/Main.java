package hourglass.interop;

import java.nio.file.Path;
import java.util.List;

/**
 * {@code Main read|write|write-and-die|write-unsealed STORE SIZES}: RocketMQ's store on a folder. SIZES are four
 * numbers: bytes of a commit-log file, bytes of a consume-queue file, hash slots and entries of an index file. Questions
 * and messages come as JSON lines on standard input, answers go as JSON lines to standard output. Without a seal a
 * record has no CRC property, which is how RocketMQ writes unless it is told otherwise.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        List<Integer> sizes = List.of(arguments).subList(2, 6).stream().map(Integer::valueOf).toList();
        boolean sealed = !arguments[0].equals("write-unsealed");
        OpenStore store = OpenStore.open(Path.of(arguments[1]), sizes, sealed);
        switch (arguments[0]) {
            case "read" -> new Reader(store).readAll();
            case "write" -> {
                new Writer(store).writeAll();
                store.close();
            }
            case "write-and-die", "write-unsealed" -> new Writer(store).writeAll();
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0); // a store that was not closed stays as a killed process leaves it
    }
}
